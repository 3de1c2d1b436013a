//! The workspace's binaries, found beside the test executable. `make test` builds them first and says so; under a plain
//! `cargo test` the first use in each test process lets cargo bring them up to date, one process at a time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::fs::{FlockOperation, flock};

/// The path of the workspace's binary `name`: `corelane-broker`, `corelane` or `corelane-loadgen`.
pub fn bin(name: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(build);
    let path = profile_dir().join(name);
    assert!(path.is_file(), "no binary {}: build it with `cargo build --workspace --bins`", path.display());
    path
}

/// The path of the workspace's example `name`: a program that only tests use.
pub fn example(name: &str) -> PathBuf {
    bin("corelane").with_file_name("examples").join(name)
}

/// The build's target directory.
pub(crate) fn target_dir() -> PathBuf {
    profile_dir().parent().expect("a profile's directory has a parent").to_owned()
}

/// `target/<profile>`: test executables lie in its `deps`, examples in its `examples`, binaries in itself.
fn profile_dir() -> PathBuf {
    let executable = std::env::current_exe().expect("a process knows its executable");
    let directory = executable.parent().expect("an executable lies in a directory");
    let nested = ["deps", "examples"].iter().any(|name| directory.ends_with(name));
    // Documentation tests run from a directory elsewhere: the target directory is then the workspace's own.
    if !nested && !directory.join("deps").is_dir() {
        return workspace_dir().join("target/debug");
    }
    if nested { directory.parent().expect("deps has a parent").to_owned() } else { directory.to_owned() }
}

fn workspace_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the test kit lies in the workspace")
}

fn build() {
    if std::env::var_os("CORELANE_BINARIES_BUILT").is_some_and(|value| value == "1") {
        return;
    }
    let profile_dir = profile_dir();
    let profile = match profile_dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    std::fs::create_dir_all(target_dir().join("tmp")).expect("the target directory can be written");
    let lock = File::create(target_dir().join("tmp/binaries.lock")).expect("the target directory can be written");
    flock(&lock, FlockOperation::LockExclusive).expect("a fresh file can be locked");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        // The examples come along because of them cargo picks the features that it picks for tests: one build for both.
        .args(["build", "--quiet", "--workspace", "--bins", "--examples", "--profile", profile, "--target-dir"])
        .arg(target_dir())
        .current_dir(workspace_dir())
        .stdin(Stdio::null())
        .status()
        .expect("cargo runs: it runs this test");
    assert!(status.success(), "cargo could not build the binaries that the tests start");
}
