//! `corelane log repair`: recovery, run by hand with the directory locked; with `--dry-run` on a disk that writes nothing.
//! There is one recovery, the log's: what it does not dare, this does not either.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use corelane_log::blocking::{self, BlockingDisk, BlockingEnv};
use corelane_log::env::Env;
use corelane_log::inspect::partition_files;
use corelane_log::lock::{DirLock, LockError};
use corelane_log::{ClosedReason, OpenError, Partition, Recovered, Shard};
use serde_json::{Value, json};

use super::RepairArgs;
use super::directory::{Directory, PartitionPlace, data_dir_of, resolve};
use super::dry::{Change, DryEnv};
use super::report::{Finding, Severity};
use super::salvage::{Salvage, Salvaged};
use crate::error::CliError;
use crate::output::{print, print_json};

pub(super) fn run(args: &RepairArgs, json: bool) -> Result<(), CliError> {
    let data = data_dir_of(&resolve(&args.dir)?);
    // Held to the end.
    let _lock = lock(&data, args.dry_run)?;
    let directory = Directory::read_as(&args.dir, false)?;
    if directory.identity.is_none() {
        let findings: Vec<String> = directory.findings.iter().map(Finding::line).collect();
        return Err(CliError::NotSeen(format!(
            "the data directory does not say whose it is, so nothing was touched; put its file \"identity\" back from \
             a backup\n{}",
            findings.join("\n")
        )));
    }
    // Before anything is cut off.
    let salvaged = args.salvage.as_deref().map(|to| Salvage::run(&directory, to)).transpose()?;
    let outcomes: Vec<Outcome<'_>> =
        directory.partitions.iter().map(|place| Outcome::of(&directory, place, args.dry_run)).collect();
    if json {
        print_json(&json!({
            "data_dir": directory.path,
            "dry_run": args.dry_run,
            "findings": directory.findings,
            "partitions": outcomes.iter().map(|outcome| outcome.to_json(&directory)).collect::<Vec<_>>(),
            "salvaged": salvaged,
        }))?;
    } else {
        print(&text(&directory, &outcomes, args, salvaged.as_ref()))?;
    }
    conclude(&directory, &outcomes)
}

fn lock(data: &Path, dry_run: bool) -> Result<Option<DirLock>, CliError> {
    let locked = if dry_run {
        DirLock::hold(data)
    } else {
        check_owner(data)?;
        DirLock::take(data).map(Some)
    };
    locked.map_err(|error| match error {
        LockError::Held { .. } => CliError::NotSeen(format!("{error}; stop the broker first (SIGTERM)")),
        error => CliError::NotSeen(error.to_string()),
    })
}

/// Files that repair makes belong to whoever runs it, and the broker must be able to write them.
fn check_owner(data: &Path) -> Result<(), CliError> {
    let owner = data.metadata().map_err(|cause| CliError::File { path: data.to_owned(), cause })?.uid();
    let user = rustix::process::geteuid().as_raw();
    if owner == user {
        return Ok(());
    }
    Err(CliError::NotSeen(format!(
        "{} belongs to user {owner}, this is user {user}; run repair as that user, so that the broker can use what it makes",
        data.display()
    )))
}

/// What recovery did, or would do, to one partition.
struct Outcome<'a> {
    place: &'a PartitionPlace,
    result: Result<Recovered, OpenError>,
    /// Why it would take no publishes all the same.
    closed: Option<ClosedReason>,
    /// The damage lies in the newest segment, which is closed therefore.
    goes_on_in_new: bool,
    /// What a dry run was asked to change.
    changes: Vec<Change>,
}

impl<'a> Outcome<'a> {
    fn of(directory: &Directory, place: &'a PartitionPlace, dry_run: bool) -> Self {
        let outcome = |result, closed, goes_on_in_new, changes| Self { place, result, closed, goes_on_in_new, changes };
        let newest = match blocking::run(partition_files(&BlockingDisk, &place.dir)) {
            Ok(files) => files.segments.last().cloned(),
            Err(source) => {
                let error = OpenError::Disk { what: "listing", path: place.dir.clone(), source };
                return outcome(Err(error), None, false, Vec::new());
            }
        };
        let Some(newest) = newest else {
            return outcome(Err(OpenError::Missing { path: place.dir.clone() }), None, false, Vec::new());
        };
        let options = directory.options(place, newest.epoch);
        let recover = async |env: DryOrReal| match env {
            DryOrReal::Dry(env) => open(env, directory, place, &options).await,
            DryOrReal::Real(env) => open(env, directory, place, &options).await,
        };
        let dry = DryEnv::default();
        let env = if dry_run { DryOrReal::Dry(dry.clone()) } else { DryOrReal::Real(BlockingEnv::default()) };
        let (result, closed) = blocking::run(recover(env))
            .map_or_else(|error| (Err(error), None), |(report, closed)| (Ok(report), closed));
        let in_newest = |report: &Recovered| report.damage.is_some_and(|damage| damage >= newest.base);
        let goes_on_in_new = result.as_ref().is_ok_and(in_newest);
        outcome(result, closed, goes_on_in_new, dry.changes())
    }

    /// Sentences, one a line.
    fn lines(&self, directory: &Directory, dry_run: bool) -> Vec<String> {
        let label = self.place.label();
        let report = match &self.result {
            Ok(report) => report,
            Err(error) => return vec![format!("{label}: cannot be repaired: {error}")],
        };
        let would = |done: &str, undone: &str| if dry_run { format!("would be {undone}") } else { done.to_owned() };
        let mut lines = Vec::new();
        if let Some((copy, bytes)) = &report.cut {
            let cut = would("was cut off", "cut off");
            let copy = directory.shown(copy).display();
            lines.push(format!("{label}: a torn tail of {bytes} bytes behind {} {cut}; its copy: {copy}", report.end));
        }
        if let Some(damage) = report.damage {
            let kept = "all of it is kept, and readers are led around what is bad";
            lines.push(format!("{label}: damage from {damage} on: {kept}"));
        }
        if self.goes_on_in_new {
            let closed = would("was closed", "closed");
            lines.push(format!("{label}: the newest segment {closed}, the log goes on in a new one at {}", report.end));
        }
        if let Some(reason) = &self.closed {
            lines.push(format!("{label}: left as it is: {reason}"));
        }
        if lines.is_empty() {
            lines.push(format!("{label}: nothing to recover, ends at {}", report.end));
        }
        lines
    }

    fn to_json(&self, directory: &Directory) -> Value {
        let shown = |path: &PathBuf| directory.shown(path).display().to_string();
        let changes: Vec<Value> = self
            .changes
            .iter()
            .map(|change| match change {
                Change::Make(path) => json!({ "make": shown(path) }),
                Change::Keep(path, bytes) => json!({ "copy_to": shown(path), "bytes": bytes }),
                Change::Remove(path) => json!({ "remove": shown(path) }),
                Change::Write(path, bytes) => json!({ "write": shown(path), "bytes": bytes }),
            })
            .collect();
        let mut value = json!({
            "topic": self.place.topic.name.as_str(),
            "partition": self.place.partition,
            "would_change": changes,
        });
        match &self.result {
            Ok(report) => {
                value["end"] = report.end.0.into();
                value["cut"] = report.cut.as_ref().map_or(
                    Value::Null,
                    |(copy, bytes)| json!({ "position": report.end.0, "bytes": bytes, "copy": shown(copy) }),
                );
                value["damage"] = report.damage.map(|damage| damage.0).into();
                value["goes_on_in_new_segment"] = self.goes_on_in_new.into();
                value["closed"] = self.closed.as_ref().map(ToString::to_string).into();
            }
            Err(error) => value["refused"] = error.to_string().into(),
        }
        value
    }
}

enum DryOrReal {
    Dry(DryEnv),
    Real(BlockingEnv),
}

async fn open<E: Env>(
    env: E,
    directory: &Directory,
    place: &PartitionPlace,
    options: &corelane_log::PartitionOptions,
) -> Result<(Recovered, Option<ClosedReason>), OpenError> {
    let shard = Shard::new(env);
    let opened = Partition::open(&shard, place.topic_dir(), options, place.floor, directory.was_clean()).await;
    // Without its driver nothing more happens to it.
    opened.map(|(partition, _, report)| (report, partition.closed()))
}

fn text(directory: &Directory, outcomes: &[Outcome<'_>], args: &RepairArgs, salvaged: Option<&Salvaged>) -> String {
    let mut lines: Vec<String> = directory.findings.iter().map(Finding::line).collect();
    lines.extend(outcomes.iter().flat_map(|outcome| outcome.lines(directory, args.dry_run)));
    if let (Some(to), Some(salvaged)) = (&args.salvage, salvaged) {
        lines.push(format!(
            "salvaged: {} candidates ({} of them lead on to where a message is known to begin) from {} bytes in which \
             no messages can be told apart, in {}",
            salvaged.candidates,
            salvaged.connected,
            salvaged.damaged_bytes,
            to.display()
        ));
    }
    if args.dry_run {
        lines.push("Nothing was changed.".to_owned());
    }
    lines.push(
        "Recovery reads what lies behind the last checkpoint. Whether all before it is good, `corelane log verify` says."
            .to_owned(),
    );
    lines.push(String::new());
    lines.join("\n")
}

fn conclude(directory: &Directory, outcomes: &[Outcome<'_>]) -> Result<(), CliError> {
    let refused = outcomes.iter().filter(|outcome| outcome.result.is_err() || outcome.closed.is_some()).count();
    let kept_aside = directory.findings.iter().any(|finding| finding.severity != Severity::Note);
    match (refused, kept_aside) {
        (0, false) => Ok(()),
        (0, true) => Err(CliError::Damage("some of it cannot be repaired; the lines above say what to do".to_owned())),
        _ => Err(CliError::Damage(format!(
            "{refused} of {} partitions cannot be repaired; the lines above say what to do",
            outcomes.len()
        ))),
    }
}
