//! `corelane log verify`: every checksum, every set, every segment, and whether all agree with identities, checkpoints and
//! summaries.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use comfy_table::CellAlignment::{Left, Right};
use corelane_log::blocking::{self, BlockingDisk, BlockingEnv};
use corelane_log::inspect::{MessageState, Seen, SeenMessage, SegmentFile, SegmentWalk, SummaryState, summary};
use corelane_log::{CheckpointEntry, OpenError, Shard, lock};
use corelane_proto::ids::Position;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::directory::{Directory, PartitionPlace};
use super::look::Look;
use super::report::{Finding, PartitionReport, Severity, worst};
use crate::error::CliError;
use crate::output::{print, print_json, print_table, table};
use crate::parse::size::format_size;

pub(super) fn run(path: &Path, json: bool) -> Result<(), CliError> {
    let directory = Directory::read(path)?;
    let looks: Vec<(&PartitionPlace, io::Result<Look>)> =
        directory.partitions.iter().map(|place| (place, Look::at(&directory, place))).collect();
    let progress = progress(looks.iter().filter_map(|(_, look)| look.as_ref().ok()).map(bytes_to_read).sum());
    let reports: Vec<PartitionReport> =
        looks.into_iter().map(|(place, look)| Verification::run(&directory, place, look, &progress)).collect();
    progress.finish_and_clear();
    if json {
        print_report_json(&directory, &reports)?;
    } else {
        print_report(&directory, &reports)?;
    }
    conclude(&directory, &reports)
}

fn bytes_to_read(look: &Look) -> u64 {
    look.end.0.saturating_sub(look.files.segments.first().map_or(look.end.0, |first| first.base.0))
}

/// Drawn on a terminal only.
fn progress(bytes: u64) -> ProgressBar {
    let template = "{bar:30} {binary_bytes} of {binary_total_bytes} ({binary_bytes_per_sec}), {msg}, {eta} to go";
    let style = ProgressStyle::with_template(template).expect("a constant template is valid");
    ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr()).with_style(style)
}

/// One partition being verified.
struct Verification<'a> {
    directory: &'a Directory,
    place: &'a PartitionPlace,
    look: &'a Look,
    progress: &'a ProgressBar,
    report: PartitionReport,
    /// Where the checkpoint's last message should end, until it is found.
    sought: Option<CheckpointEntry>,
}

/// Where in a set a walk stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InSet {
    Begin,
    Inside,
    /// Behind damage: until the next end of a set nothing is known.
    Unknown,
}

impl<'a> Verification<'a> {
    fn run(
        directory: &'a Directory,
        place: &'a PartitionPlace,
        look: io::Result<Look>,
        progress: &'a ProgressBar,
    ) -> PartitionReport {
        let (topic, partition) = (place.topic.name.to_string(), place.partition);
        let mut report = PartitionReport { topic, partition, ..PartitionReport::default() };
        let shown = directory.shown(&place.dir);
        let look = match look {
            Ok(look) => look,
            // Its topic is being deleted.
            Err(error) if error.kind() == io::ErrorKind::NotFound && directory.is_running => {
                report.add(Finding::note("gone", shown, "went away while it was looked at"));
                return report;
            }
            Err(error) => {
                report.add(Finding::failed(shown, &error));
                return report;
            }
        };
        progress.set_message(place.label());
        let mut verification = Verification { directory, place, look: &look, progress, report, sought: None };
        verification.directory_entries();
        verification.ends();
        verification.segments();
        verification.report
    }

    fn shown(&self, path: &'a Path) -> &'a Path {
        self.directory.shown(path)
    }

    /// What the directory's listing tells.
    fn directory_entries(&mut self) {
        let (files, dir) = (&self.look.files, &self.place.dir);
        for name in &files.foreign {
            let text = "is not a file of the log; it is left alone, and in nobody's way";
            self.report.add(Finding::note("foreign", self.directory.shown(&dir.join(name)), text));
        }
        for name in &files.cuts {
            let text = "is the copy of a tail that a recovery cut off; look at it with `log dump`, then remove it";
            self.report.add(Finding::note("cut_copy", self.directory.shown(&dir.join(name)), text));
        }
        if !self.directory.is_running {
            for name in &files.leftovers {
                let text = "is of no use any more; the next start removes it";
                self.report.add(Finding::note("leftover", self.directory.shown(&dir.join(name)), text));
            }
        }
        for pair in files.segments.windows(2) {
            if pair[1].epoch < pair[0].epoch {
                let text = format!("is of epoch {}, and follows one of epoch {}", pair[1].epoch, pair[0].epoch);
                self.report.add(Finding::damage("epoch", self.directory.shown(&pair[1].path), text));
            }
        }
        if files.segments.is_empty() && !(self.directory.is_running && self.place.floor.is_none()) {
            let text = "holds no segment; put the segments back from a backup, or accept the loss";
            self.report.add(Finding::damage("missing_segments", self.directory.shown(dir), text));
        }
        if let Some((from, to)) = files.gap {
            let text = "these bytes of the log are missing: a segment's file is gone or too short; the partition is \
                        not served until it is put back";
            self.add_damaged(Finding::damage("gap", self.directory.shown(dir), text), from, to);
        }
    }

    /// What recovery says, and the checkpoint.
    fn ends(&mut self) {
        let Some(newest) = self.look.files.segments.last() else { return };
        self.report.start = self.look.files.segments[0].base.0;
        self.report.end = self.look.end.0;
        self.report.segments = self.look.files.segments.len() as u64;
        match &self.look.recovery {
            Some(Ok(recovered)) => {
                if let Some((_, bytes)) = recovered.cut {
                    let text = "a torn tail, as a crash leaves it; the next start cuts it off and keeps a copy";
                    self.report
                        .add(Finding::note("torn_tail", self.shown(&newest.path), text).at(recovered.end, bytes));
                }
            }
            // Told above.
            Some(Err(OpenError::Gap { .. } | OpenError::MissingStart { .. })) | None => {}
            Some(Err(OpenError::Disk { path, source, .. })) => {
                self.report.add(Finding::failed(self.directory.shown(path), source));
            }
            Some(Err(OpenError::NewerVersion { path, .. })) => {
                let text = "holds messages of a newer format; start a newer broker on this directory";
                self.report.add(Finding::damage("newer_version", self.directory.shown(path), text));
            }
            Some(Err(error @ OpenError::Overlap { path, .. })) => {
                self.report.add(Finding::damage("overlap", self.directory.shown(path), error.to_string()));
            }
            Some(Err(error)) => {
                self.report.add(Finding::damage("refused", self.shown(&self.place.dir), error.to_string()));
            }
        }
        let Some(floor) = self.look.floor else {
            if self.directory.is_running {
                let text = "the checkpoint does not tell of it yet; its newest segment was not read";
                self.report.add(Finding::note("no_checkpoint", self.shown(&self.place.dir), text));
            }
            return;
        };
        let durable = floor.durable_end;
        if durable > newest.file_end() {
            let text = "the checkpoint calls these bytes durable, and they are not there";
            let finding = Finding::damage("short_of_checkpoint", self.shown(&newest.path), text);
            self.add_damaged(finding, newest.file_end(), durable);
        } else if floor.last.bytes > 0 && durable.0 > self.report.start {
            self.sought = Some(floor);
        }
    }

    fn add_damaged(&mut self, finding: Finding, from: Position, to: Position) {
        let bytes = to.0.saturating_sub(from.0);
        self.report.damaged_bytes += bytes;
        self.report.add(finding.at(from, bytes));
    }

    fn segments(&mut self) {
        let shard = Shard::new(BlockingEnv::default());
        for segment in &self.look.files.segments {
            match blocking::run(self.segment(&shard, segment)) {
                Ok(()) => {}
                // Retention took it.
                Err(error) if error.kind() == io::ErrorKind::NotFound && self.directory.is_running => {
                    let text = "went away while it was looked at: it has expired, or its topic was deleted";
                    self.report.add(Finding::note("gone", self.shown(&segment.path), text));
                    let end = self.look.segment_end(segment);
                    // And what the checkpoint knows of it went with it.
                    self.sought =
                        self.sought.filter(|floor| floor.durable_end <= segment.base || floor.durable_end > end);
                }
                Err(error) => self.report.add(Finding::failed(self.shown(&segment.path), &error)),
            }
        }
        if let Some(floor) = self.sought.take().filter(|floor| floor.durable_end <= self.look.end) {
            let text = "the last message that the checkpoint knows does not end here";
            let finding = Finding::damage("checkpoint_disagrees", self.shown(&self.place.dir), text);
            let from = Position(floor.durable_end.0.saturating_sub(u64::from(floor.last.bytes)));
            self.report.add(finding.at(from, u64::from(floor.last.bytes)));
        }
    }

    async fn segment(&mut self, shard: &Shard<BlockingEnv>, segment: &'a SegmentFile) -> io::Result<()> {
        let end = self.look.segment_end(segment);
        let summary = summary(&BlockingDisk, segment).await?;
        let known = if let SummaryState::Read(summary) = &summary { summary.boundaries.clone() } else { Vec::new() };
        let known = known.into_iter().chain(self.look.floor.map(|floor| floor.durable_end));
        let mut walk = SegmentWalk::open(shard, segment, segment.base, end, known).await?;
        let (damaged_before, messages_before) = (self.report.damaged_bytes, self.report.messages);
        let mut max_timestamp_ms = i64::MIN;
        let mut in_set = InSet::Begin;
        while let Some(seen) = walk.next().await? {
            match seen {
                Seen::Message(message) => {
                    self.progress.inc(u64::from(message.header.length));
                    in_set = self.message(segment, &message, in_set);
                    if message.state == MessageState::Good {
                        max_timestamp_ms = max_timestamp_ms.max(message.header.timestamp_ms);
                    }
                }
                Seen::Damage { from, to, is_zeros } => {
                    self.progress.inc(to - from);
                    in_set = self.damage(segment, from, to, is_zeros);
                }
            }
        }
        if in_set == InSet::Inside {
            let text = "the last set of the segment is not whole";
            self.report.add(Finding::damage("broken_set", self.shown(&segment.path), text).at(walk.at(), 0));
        }
        let is_whole = self.report.damaged_bytes == damaged_before && walk.at() == end;
        let messages = self.report.messages - messages_before;
        if segment.next.is_some() || matches!(summary, SummaryState::Unreadable(_)) {
            self.summary(segment, &summary, is_whole.then_some((end - segment.base, messages, max_timestamp_ms)));
        }
        Ok(())
    }

    fn message(&mut self, segment: &'a SegmentFile, message: &SeenMessage, in_set: InSet) -> InSet {
        let (at, bytes) = (message.at, u64::from(message.header.length));
        let path = self.shown(&segment.path);
        match message.state {
            MessageState::Good => {}
            MessageState::Newer => {
                let text = format!("a message of format version {}; start a newer broker", message.header.version);
                self.report.add(Finding::damage("newer_version", path, text).at(at, bytes));
                return InSet::Unknown;
            }
            MessageState::BadCrc => {
                self.report.bad_messages += 1;
                let text = "a message whose checksum is wrong; readers skip it";
                self.add_damaged(Finding::damage("bad_message", path, text), at, at + bytes);
                return InSet::Unknown;
            }
        }
        self.report.messages += message.messages;
        let end = at + bytes;
        if let Some(floor) = self.sought
            && floor.durable_end == end
            && (floor.last.bytes, floor.last.crc) == (message.header.length, message.header.crc)
        {
            self.sought = None;
        }
        if message.header.has_producer_block() && in_set == InSet::Inside {
            let text = "a message inside a set says that it begins one";
            self.report.add(Finding::damage("broken_set", path, text).at(at, bytes));
        }
        if message.header.is_last() {
            self.report.sets += 1;
            InSet::Begin
        } else if in_set == InSet::Begin {
            InSet::Inside
        } else {
            in_set
        }
    }

    fn damage(&mut self, segment: &'a SegmentFile, from: Position, to: Position, is_zeros: bool) -> InSet {
        let floor = self.look.floor.map_or(Position::ZERO, |floor| floor.durable_end);
        let was_never_written = is_zeros && segment.next.is_none() && from >= floor;
        if was_never_written {
            return InSet::Begin;
        }
        self.report.bad_messages += 1;
        let text = if is_zeros {
            "zeros where messages should be; readers skip them"
        } else {
            "no messages can be told apart here; readers go on behind it, where a message is known to begin"
        };
        self.add_damaged(Finding::damage("damaged_bytes", self.shown(&segment.path), text), from, to);
        InSet::Unknown
    }

    /// Compares a summary with what was found: bytes, messages and the largest timestamp of a segment without damage.
    fn summary(&mut self, segment: &SegmentFile, summary: &SummaryState, found: Option<(u64, u64, i64)>) {
        let path = segment.path.with_extension("summary");
        let path = self.directory.shown(&path);
        match summary {
            SummaryState::Missing => {}
            SummaryState::Unreadable(reason) => {
                let text = format!("{reason}; it is rebuilt when it is wanted, remove it");
                self.report.add(Finding::damage("bad_summary", path, text));
            }
            SummaryState::Read(summary) => {
                let Some((bytes, messages, max_timestamp_ms)) = found else { return };
                let told = (summary.messages, summary.max_timestamp_ms);
                // One that was written while the segment was active tells of a part of it.
                if summary.bytes > bytes || summary.bytes == bytes && told != (messages, max_timestamp_ms) {
                    let text = format!(
                        "it tells of {} messages up to time {}, the segment has {messages} up to {max_timestamp_ms}: \
                         is one of the two files another segment's?",
                        told.0, told.1
                    );
                    self.report.add(Finding::damage("summary_disagrees", path, text));
                }
            }
        }
    }
}

fn print_report(directory: &Directory, reports: &[PartitionReport]) -> Result<(), CliError> {
    let mut rows = table(&[
        ("PARTITION", Left),
        ("START", Right),
        ("READ TO", Right),
        ("SEGMENTS", Right),
        ("SETS", Right),
        ("MESSAGES", Right),
        ("BAD", Right),
        ("STATE", Left),
    ]);
    for report in reports {
        let state = match report.worst() {
            Severity::Note => "clean".to_owned(),
            Severity::NotSeen => "not seen".to_owned(),
            Severity::Damage if report.damaged_bytes > 0 => format!("DAMAGED, {}", format_size(report.damaged_bytes)),
            Severity::Damage => "DAMAGED".to_owned(),
        };
        rows.add_row(vec![
            format!("{}/{}", report.topic, report.partition),
            report.start.to_string(),
            report.end.to_string(),
            report.segments.to_string(),
            report.sets.to_string(),
            report.messages.to_string(),
            report.bad_messages.to_string(),
            state,
        ]);
    }
    print_table(&rows)?;
    let mut text = String::new();
    for finding in directory.findings.iter().chain(reports.iter().flat_map(|report| &report.findings)) {
        text.push_str(&finding.line());
        text.push('\n');
    }
    for report in reports.iter().filter(|report| report.findings_left_out > 0) {
        let _ = writeln!(text, "{}/{}: {} more", report.topic, report.partition, report.findings_left_out);
    }
    if directory.is_running {
        text.push_str(
            "A broker runs on this directory: each newest segment was read up to what the last checkpoint calls \
             durable.\n",
        );
    }
    print(&text)
}

fn print_report_json(directory: &Directory, reports: &[PartitionReport]) -> Result<(), CliError> {
    print_json(&json!({
        "data_dir": directory.path,
        "broker_runs": directory.is_running,
        "stopped_clean": directory.was_clean(),
        "result": match worst_of(directory, reports) {
            Severity::Note => "clean",
            Severity::NotSeen => "not_seen",
            Severity::Damage => "damage",
        },
        "findings": directory.findings,
        "partitions": reports,
    }))
}

fn worst_of(directory: &Directory, reports: &[PartitionReport]) -> Severity {
    worst(directory.findings.iter().chain(reports.iter().flat_map(|report| &report.findings)))
}

/// The exit status, and what to do.
fn conclude(directory: &Directory, reports: &[PartitionReport]) -> Result<(), CliError> {
    let severity = worst_of(directory, reports);
    if severity != Severity::Note && !directory.is_running && lock::is_held(&directory.path).unwrap_or(true) {
        return Err(CliError::NotSeen(
            "a broker was started meanwhile, so what was found may be its own writing; run this again".to_owned(),
        ));
    }
    match severity {
        Severity::Note => Ok(()),
        Severity::NotSeen => {
            Err(CliError::NotSeen("not all of it could be looked at; the report says what and why".to_owned()))
        }
        Severity::Damage => Err(CliError::Damage(
            "damage was found; copy the directory before anything else, check the disk, and see docs/operations.md"
                .to_owned(),
        )),
    }
}
