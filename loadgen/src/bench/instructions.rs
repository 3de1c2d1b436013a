//! Instructions for a message of the bench in the parts that are pure, counted by valgrind's callgrind: the same on every
//! machine with the same compiler, however busy it is. A baseline is kept in the repository.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::book::Book;

/// The parts, as the counted program and the table call them.
const PARTS: [(&str, &str); 4] = [
    ("encode", "instructions.encode"),
    ("check", "instructions.check"),
    ("parse", "instructions.parse"),
    ("commit", "instructions.commit"),
];
/// Messages of the shorter run; what two runs of different length have in common is not counted.
const MESSAGES: u64 = 10_000;

/// Counts all parts and compares them with the baseline.
pub(crate) fn count(book: &mut Book, program: &Path, baseline: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(baseline).map_err(|error| format!("{}: {error}", baseline.display()))?;
    let baseline: BTreeMap<String, f64> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let mut worst: f64 = 0.0;
    for (part, id) in PARTS {
        let each = (collected(program, part, 2 * MESSAGES)? - collected(program, part, MESSAGES)?) / MESSAGES as f64;
        book.note(id, each);
        let agreed = baseline.get(part).ok_or_else(|| format!("the baseline does not know {part:?}"))?;
        worst = worst.max(each / agreed);
    }
    book.note("instructions.ratio", worst);
    Ok(())
}

/// Instructions of a whole run.
fn collected(program: &Path, part: &str, messages: u64) -> Result<f64, String> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([part, &messages.to_string()])
        .output()
        .map_err(|error| format!("valgrind: {error} (on Debian: apt-get install valgrind)"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let count = said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    count.ok_or_else(|| format!("valgrind counted nothing: {said}"))
}
