//! Tests that cannot run somewhere say so by name. `.ci/run` compares the names with those that .ci/skipped.txt allows on
//! the machine at hand, so that a skip is never silent.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Says that the test `name` cannot run here, and why, in one line. The caller returns afterwards.
///
/// ```
/// # use corelane_testkit::skip;
/// if !std::path::Path::new("/proc/self").exists() {
///     return skip("memory_is_flat", "no /proc");
/// }
/// ```
pub fn skip(name: &str, why: &str) {
    let line = format!("SKIPPED {name}: {why}");
    println!("{line}");
    let Some(path) = std::env::var_os("CORELANE_SKIPPED_FILE") else { return };
    // One write in append mode: lines of test processes that run side by side stay whole.
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.unwrap_or_else(|error| panic!("cannot note a skipped test in {}: {error}", Path::new(&path).display()));
}

/// Whether the long forms of the tests were asked for (`make test-full` sets `CORELANE_FULL=1`).
pub fn full() -> bool {
    std::env::var_os("CORELANE_FULL").is_some_and(|value| value == "1")
}

/// The sample logs of real systems, sorted by name, from `../shared/data` beside the repository (or the directory that
/// `CORELANE_SAMPLE_LOGS` names). They are not part of the project: `None` where they are not.
pub fn sample_logs() -> Option<Vec<PathBuf>> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the test kit lies in the repository");
    let directory =
        std::env::var_os("CORELANE_SAMPLE_LOGS").map_or_else(|| repository.join("../shared/data"), PathBuf::from);
    let mut logs: Vec<PathBuf> = fs::read_dir(directory)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    logs.sort();
    (!logs.is_empty()).then_some(logs)
}
