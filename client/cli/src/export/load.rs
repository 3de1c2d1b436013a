//! The files of one partition. The newest file says where to begin, whatever else is running: of two runs that make a file
//! that begins with the same message, the slower one drops its own and goes on behind the other's. Within a run the end is
//! fixed, so that it ends however busy the topic is.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use corelane_client::{
    Client, ConsumeError, ConsumedMessage, Consumer, Find, OutOfRange, PartitionInfo, Start, TopicId,
};
use indicatif::ProgressBar;

use super::args::{ExportArgs, FileFormat};
use super::file::{Writer, ends_set, next_position};
use super::group::Group;
use super::names::{self, Exported, Files, First, date_directory, day_of};
use super::whole::{self, Named, Whole};
use super::{Summary, now_ms};
use crate::error::CliError;
use crate::parse::place::Place;

/// Where a partition's next file begins.
#[derive(Debug, Clone, Copy)]
struct Begin {
    /// Where the files that are there end: what is missing from there on was taken by retention.
    after: Option<u64>,
    position: u64,
}

/// See the head of this file.
pub(super) struct Load<'a> {
    client: &'a Client,
    args: &'a ExportArgs,
    group: Option<&'a Group>,
    of: Exported,
    partition: u32,
    epoch: u32,
    begin: Begin,
    /// Where this run ends.
    end: u64,
    until_ms: Option<i64>,
}

/// A file that is being written.
struct Open {
    whole: Whole,
    writer: Writer,
    path: PathBuf,
    day: i64,
    next: u64,
    bytes: u64,
    messages: u64,
}

/// How far a reader went.
enum Read {
    /// To the end of the run.
    All,
    /// Another run has made the same file: look again where to begin.
    Overtaken,
}

impl<'a> Load<'a> {
    pub(super) async fn new(
        client: &'a Client,
        args: &'a ExportArgs,
        topic_id: TopicId,
        partition: &PartitionInfo,
        group: Option<&'a Group>,
    ) -> Result<Self, CliError> {
        let (partition, epoch) = (partition.partition, partition.epoch);
        let bounds = client.admin().find(&args.topic, partition, Find::Latest).await?;
        let until_ms = args.until.map(|until| until.unix_ms(now_ms()));
        let begin = Begin { after: None, position: 0 };
        let of = Exported { topic: args.topic.clone(), id: names::id_digits(topic_id), partition };
        let mut load = Self { client, args, group, of, partition, epoch, begin, end: bounds.visible_end, until_ms };
        load.begin = load.find_begin().await?;
        // A group that is new stands at the earliest message, and one whose run was killed behind the files.
        if let Some(group) = group {
            group.commit(client, partition, epoch, load.begin.position).await?;
        }
        Ok(load)
    }

    /// About how much is to be exported.
    pub(super) fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.begin.position)
    }

    fn failed(&self, cause: io::Error) -> CliError {
        CliError::File { path: self.args.to.clone(), cause }
    }

    async fn find_begin(&self) -> Result<Begin, CliError> {
        let (args, partition, epoch) = (self.args, self.partition, self.epoch);
        let found = names::find(&args.to, args.format).map_err(|cause| self.failed(cause))?;
        let files = found.get(&self.of);
        let bounds = self.client.admin().find(&args.topic, partition, Find::Latest).await?;
        let after = match files.and_then(|files| files.last_key_value()) {
            Some((first, path)) if first.epoch == epoch => {
                let next = next_position(path, *first, args.format);
                Some(next.map_err(|cause| CliError::File { path: path.clone(), cause })?)
            }
            Some((first, path)) if first.epoch > epoch => {
                return Err(CliError::Argument(format!(
                    "{} is of epoch {}, and {}/{partition} has epoch {epoch}: it belongs to another topic, or to a later life",
                    path.display(),
                    first.epoch,
                    args.topic
                )));
            }
            // The log began again: all of it is new.
            Some(_) => return Ok(Begin { after: None, position: bounds.start }),
            None if self.is_created_again(&found) => return Ok(Begin { after: None, position: bounds.start }),
            None => self.group.and_then(|group| group.committed(partition, epoch)),
        };
        if let Some(next) = after {
            if next > bounds.end {
                return Err(CliError::Argument(format!(
                    "the files of {}/{partition} end at {next}, and the log at {}: they belong to another topic",
                    args.topic, bounds.end
                )));
            }
            return Ok(Begin { after, position: next.max(bounds.start) });
        }
        let find = match args.from {
            Place::Earliest => Find::Earliest,
            Place::Latest => Find::Latest,
            Place::Position(position) => {
                return Ok(Begin { after, position: position.clamp(bounds.start, bounds.end) });
            }
            Place::Time(moment) => Find::TimeMs(moment.unix_ms(now_ms())),
        };
        let found = self.client.admin().find(&args.topic, partition, find).await?;
        Ok(Begin { after, position: found.position })
    }

    /// Whether the files that are there are of another topic of this name; tells so.
    fn is_created_again(&self, found: &BTreeMap<Exported, Files>) -> bool {
        let Exported { topic, id, partition } = &self.of;
        let is_other = |of: &&Exported| of.topic == *topic && of.partition == *partition && of.id != *id;
        let Some(other) = found.keys().find(is_other) else { return false };
        eprintln!(
            "corelane: topic {topic} was created again: the files of {topic}-{} are of an earlier one, partition \
             {partition} begins at its start",
            other.id
        );
        true
    }

    /// Exports to the end.
    pub(super) async fn run(mut self, summary: &mut Summary, bar: &ProgressBar) -> Result<(), CliError> {
        if let Some(after) = self.begin.after {
            let missed = self.begin.position.saturating_sub(after);
            if missed > 0 {
                eprintln!(
                    "corelane: retention has taken {missed} bytes of {}/{} before they were exported",
                    self.args.topic, self.partition
                );
                summary.missed_bytes += missed;
            }
        }
        while self.begin.position < self.end {
            let from = Start::Position(self.begin.position);
            let mut consumer = self.client.consumer().partition_from(&self.args.topic, self.partition, from);
            if self.args.format == FileFormat::Raw {
                consumer = consumer.whole_sets();
            }
            let mut consumer = consumer.out_of_range(OutOfRange::Fail).until_end(true).build().await?;
            let read = self.read(&mut consumer, summary, bar).await?;
            let stats = consumer.stats();
            summary.damaged += stats.bad_messages;
            match read {
                Read::All => break,
                Read::Overtaken => self.begin = self.find_begin().await?,
            }
        }
        Ok(())
    }

    /// Reads and writes files until the end of the run.
    async fn read(
        &mut self,
        consumer: &mut Consumer,
        summary: &mut Summary,
        bar: &ProgressBar,
    ) -> Result<Read, CliError> {
        let is_raw = self.args.format == FileFormat::Raw;
        let mut open: Option<Open> = None;
        // Whether a file may end before the next message.
        let mut is_between = true;
        while let Some(message) = next(consumer, summary).await? {
            let is_beyond = message.position() >= self.end
                || self.until_ms.is_some_and(|until_ms| message.timestamp_ms() >= until_ms);
            if is_between && is_beyond {
                break;
            }
            if let Some(file) = &open
                && ((is_between && self.is_full(file, &message)) || (is_raw && message.position() != file.next))
                && let Some(file) = open.take()
                && !self.close(file, summary).await?
            {
                return Ok(Read::Overtaken);
            }
            let file = match &mut open {
                Some(file) => file,
                None => open.insert(self.open(&message).map_err(|cause| self.failed(cause))?),
            };
            file.writer.write(&message).map_err(|cause| CliError::File { path: file.path.clone(), cause })?;
            let bytes = message.next_position().saturating_sub(file.next.max(self.begin.position));
            file.next = message.next_position();
            file.bytes += message.frame().len() as u64;
            file.messages += 1;
            bar.inc(bytes);
            is_between = !is_raw || ends_set(&message);
        }
        let is_mine = match open {
            Some(file) => self.close(file, summary).await?,
            None => true,
        };
        Ok(if is_mine { Read::All } else { Read::Overtaken })
    }

    /// Whether the next message begins a new file: this one is large enough, or its day is over.
    fn is_full(&self, file: &Open, message: &ConsumedMessage) -> bool {
        let is_next_day = self.args.partition_by.is_some() && day_of(message.timestamp_ms()) > file.day;
        file.bytes >= self.args.file_bytes || is_next_day
    }

    /// Begins the file that this message is the first of.
    fn open(&self, message: &ConsumedMessage) -> io::Result<Open> {
        let day = day_of(message.timestamp_ms());
        let mut directory = self.args.to.clone();
        if self.args.partition_by.is_some() {
            directory.push(date_directory(day));
            whole::make_directory(&directory)?;
            whole::clean(&directory)?;
        }
        let first = First { epoch: self.epoch, position: message.position() };
        let path = directory.join(names::name(&self.of, first, self.args.format));
        let whole = Whole::create(&directory)?;
        let writer = Writer::new(self.args.format, whole.writer()?, &self.args.topic, self.partition)?;
        Ok(Open { whole, writer, path, day, next: message.position(), bytes: 0, messages: 0 })
    }

    /// Ends a file; `false`: another run has made it.
    async fn close(&self, open: Open, summary: &mut Summary) -> Result<bool, CliError> {
        let Open { whole, writer, path, next, bytes, messages, .. } = open;
        let named = writer.finish(next).and_then(|()| whole.name(&path));
        match named.map_err(|cause| CliError::File { path: path.clone(), cause })? {
            Named::Taken => Ok(false),
            Named::Done => {
                summary.files += 1;
                summary.messages += messages;
                summary.bytes += bytes;
                if let Some(group) = self.group {
                    group.commit(self.client, self.partition, self.epoch, next).await?;
                }
                Ok(true)
            }
        }
    }
}

/// The next message; what cannot be unpacked is told, counted and left out.
async fn next(consumer: &mut Consumer, summary: &mut Summary) -> Result<Option<ConsumedMessage>, CliError> {
    loop {
        match consumer.next().await {
            None => return Ok(None),
            Some(Ok(message)) => return Ok(Some(message)),
            Some(Err(error @ ConsumeError::Undecodable { .. })) => {
                summary.damaged += 1;
                eprintln!("corelane: {error}; left out");
            }
            Some(Err(ConsumeError::Call(error))) => return Err(error.into()),
            Some(Err(error)) => return Err(CliError::Consume(error.to_string())),
        }
    }
}
