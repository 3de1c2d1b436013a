//! What the disk gives, by fio: the references for writing, reading and committing.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::cores::Cores;

/// Space that is allocated for writing: more than is written, since blocks that were written before are faster, and a stream
/// of large sets finds none.
const ALLOCATED_BYTES: u64 = 8 << 30;
/// What small commits go into, again and again: written before, as what is ahead of a log's small commits.
const COMMITTED_BYTES: u64 = 64 << 20;
/// What is read is a multiple of this.
const BLOCK_BYTES: u64 = 512 << 10;

/// Latencies of a write and of the flush behind it, added, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Commit {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Sequential direct writes into a file whose space is allocated, in MB/s, and how many bytes were written.
pub(crate) fn disk_write(cores: &Cores, directory: &Path, seconds: u32) -> Result<(f64, u64), String> {
    let _ = std::fs::remove_file(directory.join("fio"));
    let report = run(cores, directory, seconds, ALLOCATED_BYTES, &["--rw=write", "--bs=512k", "--iodepth=4"])?;
    let written = report["jobs"][0]["write"]["io_bytes"].as_u64().unwrap_or(0);
    Ok((mb_per_s(&report, "write")?, written))
}

/// Sequential direct reads of the `written` bytes that `disk_write` has left, again and again, in MB/s.
pub(crate) fn disk_read(cores: &Cores, directory: &Path, seconds: u32, written: u64) -> Result<f64, String> {
    let bytes = (written.min(ALLOCATED_BYTES) / BLOCK_BYTES).max(1) * BLOCK_BYTES;
    let report = run(cores, directory, seconds, bytes, &["--rw=read", "--bs=512k", "--iodepth=4"])?;
    mb_per_s(&report, "read")
}

/// One write of 4 KiB after the other into blocks that were written before, each flushed.
pub(crate) fn commit(cores: &Cores, directory: &Path, seconds: u32) -> Result<Commit, String> {
    let _ = std::fs::remove_file(directory.join("fio"));
    let args = ["--rw=write", "--bs=4k", "--iodepth=1", "--fdatasync=1", "--overwrite=1"];
    let report = run(cores, directory, seconds, COMMITTED_BYTES, &args)?;
    let _ = std::fs::remove_file(directory.join("fio"));
    let job = &report["jobs"][0];
    let at = |percentile: &str| -> Result<f64, String> {
        let write = job["write"]["clat_ns"]["percentile"][percentile].as_f64();
        let flush = job["sync"]["lat_ns"]["percentile"][percentile].as_f64();
        write.zip(flush).map(|(write, flush)| (write + flush) / 1e3).ok_or_else(|| "fio told no latencies".to_owned())
    };
    Ok(Commit { p50_us: at("50.000000")?, p99_us: at("99.000000")? })
}

fn mb_per_s(report: &Value, direction: &str) -> Result<f64, String> {
    let bytes = report["jobs"][0][direction]["bw_bytes"].as_f64();
    bytes.map(|bytes| bytes / 1e6).ok_or_else(|| "fio told no rate".to_owned())
}

fn run(cores: &Cores, directory: &Path, seconds: u32, bytes: u64, args: &[&str]) -> Result<Value, String> {
    cores.as_broker();
    let output = Command::new("fio")
        .args(["--name=bench", "--direct=1", "--ioengine=io_uring", "--fallocate=posix", "--time_based"])
        .args(["--output-format=json", &format!("--size={bytes}"), &format!("--runtime={seconds}")])
        .arg(format!("--filename={}", directory.join("fio").display()))
        .args(args)
        .output();
    cores.as_load();
    let output = output.map_err(|error| format!("fio: {error} (on Debian: apt-get install fio)"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Notes may stand before the document.
    let document = text.find('{').map_or("", |at| &text[at..]);
    serde_json::from_str(document)
        .map_err(|error| format!("fio's report: {error}: {}", String::from_utf8_lossy(&output.stderr)))
}
