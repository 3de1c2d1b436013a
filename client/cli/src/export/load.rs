//! The files of one partition. The newest file says where to begin (begin.rs); whatever ends the reading, what was read is
//! in a file before. Within a run the end is fixed, so that it ends however busy the topic is.

use std::io;
use std::path::PathBuf;

use corelane_client::{
    Client, ConsumeError, ConsumedMessage, Consumer, Find, OutOfRange, PartitionInfo, Start, TopicId,
};
use corelane_proto::message::Message;
use indicatif::ProgressBar;

use super::args::{ExportArgs, FileFormat};
use super::begin::Begin;
use super::file::{Writer, ends_set, messages_inside};
use super::group::Group;
use super::names::{self, Exported, First, date_directory, day_of};
use super::past::Past;
use super::whole::{self, Named, Whole};
use super::{Summary, now_ms};
use crate::error::CliError;
use crate::output::count;

/// See the head of this file.
pub(super) struct Load<'a> {
    pub(super) client: &'a Client,
    pub(super) args: &'a ExportArgs,
    pub(super) group: Option<&'a Group>,
    pub(super) past: &'a Past,
    pub(super) of: Exported,
    pub(super) partition: u32,
    pub(super) epoch: u32,
    /// None: not looked for yet.
    pub(super) begin: Option<Begin>,
    /// All below it is in a file, or was told to be missing.
    pub(super) settled_until: u64,
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
    /// Another run has made the same file, or retention was faster: look again where to begin.
    Overtaken,
}

impl<'a> Load<'a> {
    pub(super) async fn new(
        client: &'a Client,
        args: &'a ExportArgs,
        topic_id: TopicId,
        partition: &PartitionInfo,
        group: Option<&'a Group>,
        past: &'a Past,
    ) -> Result<Self, CliError> {
        let (partition, epoch) = (partition.partition, partition.epoch);
        let end = client.admin().find(&args.topic, partition, Find::Latest).await?.visible_end;
        let until_ms = args.until.map(|until| until.unix_ms(now_ms()));
        let of = Exported { topic: args.topic.clone(), id: topic_id.short(), partition };
        let (begin, settled_until) = (None, 0);
        let mut load = Self { client, args, group, past, of, partition, epoch, begin, settled_until, end, until_ms };
        let begin = load.find_begin().await?;
        // Where nothing follows, nothing can follow wrongly.
        if let (Some(next), Some(path)) = (begin.after, load.newest_file()?)
            && next < end
        {
            load.check_same(&path, next, begin.log_start).await?;
        }
        load.begin = Some(begin);
        Ok(load)
    }

    /// Tells the group where this run begins: one that is new stands at the earliest message, and one whose run was killed
    /// behind the files.
    pub(super) async fn commit_begin(&self) -> Result<(), CliError> {
        match (self.group, self.begin) {
            (Some(group), Some(begin)) => group.commit(self.client, self.partition, self.epoch, begin.position).await,
            _ => Ok(()),
        }
    }

    /// About how much is to be exported.
    pub(super) fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.begin.map_or(0, |begin| begin.position))
    }

    pub(super) fn failed(&self, cause: io::Error) -> CliError {
        CliError::File { path: self.args.to.clone(), cause }
    }

    /// Exports to the end.
    pub(super) async fn run(mut self, summary: &mut Summary, bar: &ProgressBar) -> Result<(), CliError> {
        let mut tried = None;
        loop {
            // The partitions before have taken their time, and retention does not wait.
            let begin = self.find_begin().await?;
            // Whoever was faster has moved the beginning.
            if tried.replace(begin.position) == Some(begin.position) {
                return Err(CliError::Consume(format!(
                    "a file of {}/{} that begins at {} is there already, and is not found again: is its directory one that \
                     can be read, below {}?",
                    self.args.topic,
                    self.partition,
                    begin.position,
                    self.args.to.display()
                )));
            }
            self.count_missed(begin, summary);
            self.begin = Some(begin);
            if begin.position >= self.end {
                return Ok(());
            }
            let from = Start::Position(begin.position);
            let mut consumer = self.client.consumer().partition_from(&self.args.topic, self.partition, from);
            if self.args.format == FileFormat::Raw {
                consumer = consumer.whole_sets();
            }
            let mut consumer = consumer.out_of_range(OutOfRange::Fail).until_end(true).build().await?;
            self.check_epoch(&consumer)?;
            let read = self.read(&mut consumer, begin.position, summary, bar).await;
            summary.damaged += consumer.stats().bad_messages;
            if matches!(read?, Read::All) {
                return Ok(());
            }
        }
    }

    /// Files are named by the epoch of the beginning; from here on a new one is an error of the consumer.
    fn check_epoch(&self, consumer: &Consumer) -> Result<(), CliError> {
        match consumer.positions().first() {
            Some(at) if at.epoch != self.epoch => Err(CliError::Consume(format!(
                "the log of {}/{} began again during the export: epoch {} follows {}; start it once more",
                self.args.topic, self.partition, at.epoch, self.epoch
            ))),
            _ => Ok(()),
        }
    }

    /// Reads and writes files until the end of the run.
    async fn read(
        &mut self,
        consumer: &mut Consumer,
        from: u64,
        summary: &mut Summary,
        bar: &ProgressBar,
    ) -> Result<Read, CliError> {
        let is_raw = self.args.format == FileFormat::Raw;
        let mut open: Option<Open> = None;
        // What belongs together: a message, or in raw files a set.
        let mut unit: Vec<ConsumedMessage> = Vec::new();
        let mut told = from;
        let end = loop {
            let message = match next(consumer, summary).await {
                Ok(Some(message)) => message,
                Ok(None) => break Ok(Read::All),
                Err(ConsumeError::OutOfRange { .. }) => break Ok(Read::Overtaken),
                Err(ConsumeError::Unavailable { cause, .. }) => break Err(cause.into()),
                Err(error) => break Err(CliError::Consume(error.to_string())),
            };
            if unit.is_empty() && self.is_beyond(&message) {
                break Ok(Read::All);
            }
            // A raw file's length says where it ends, so it has no holes; and whoever reads it wants whole sets.
            let expected = unit.last().map(ConsumedMessage::next_position).or(open.as_ref().map(|file| file.next));
            if is_raw && expected.is_some_and(|expected| expected != message.position()) {
                leave_out(&mut unit, summary);
                if !self.close(open.take(), summary).await? {
                    return Ok(Read::Overtaken);
                }
            }
            bar.inc(message.next_position().saturating_sub(told));
            told = message.next_position();
            let is_whole = !is_raw || ends_set(&message);
            unit.push(message);
            if is_whole {
                if open.as_ref().is_some_and(|file| self.is_full(file, &unit[0]))
                    && !self.close(open.take(), summary).await?
                {
                    return Ok(Read::Overtaken);
                }
                self.write(&mut open, &mut unit)?;
            }
        };
        if matches!(end, Ok(Read::All)) {
            leave_out(&mut unit, summary);
        }
        let is_mine = self.close(open, summary).await;
        let end = end?;
        Ok(if is_mine? { end } else { Read::Overtaken })
    }

    fn is_beyond(&self, message: &ConsumedMessage) -> bool {
        message.position() >= self.end || self.until_ms.is_some_and(|until_ms| message.timestamp_ms() >= until_ms)
    }

    /// Whether the next message begins a new file: this one is large enough, or its day is over.
    fn is_full(&self, file: &Open, message: &ConsumedMessage) -> bool {
        let is_next_day = self.args.partition_by.is_some() && day_of(message.timestamp_ms()) > file.day;
        let limit = self.args.file_bytes;
        is_next_day || (limit > 0 && file.bytes >= limit)
    }

    /// Writes what belongs together to the file, which it begins if there is none.
    fn write(&self, open: &mut Option<Open>, unit: &mut Vec<ConsumedMessage>) -> Result<(), CliError> {
        let file = match open {
            Some(file) => file,
            None => open.insert(self.open(&unit[0]).map_err(|cause| self.failed(cause))?),
        };
        for message in unit.drain(..) {
            file.writer.write(&message).map_err(|cause| CliError::File { path: file.path.clone(), cause })?;
            file.next = message.next_position();
            file.bytes += message.frame().len() as u64;
            file.messages += Message::view(message.frame()).map_or(1, |message| messages_inside(&message));
        }
        Ok(())
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

    /// Ends a file, if there is one; `false`: another run has made it.
    async fn close(&mut self, open: Option<Open>, summary: &mut Summary) -> Result<bool, CliError> {
        let Some(Open { whole, writer, path, next, bytes, messages, .. }) = open else { return Ok(true) };
        let named = writer.finish(next).and_then(|()| whole.name(&path));
        match named.map_err(|cause| CliError::File { path: path.clone(), cause })? {
            Named::Taken => Ok(false),
            Named::Done => {
                summary.files += 1;
                summary.messages += messages;
                summary.bytes += bytes;
                self.settled_until = next;
                if let Some(group) = self.group {
                    group.commit(self.client, self.partition, self.epoch, next).await?;
                }
                Ok(true)
            }
        }
    }
}

/// The messages of a set of which something is damaged: what is left of it is no set.
fn leave_out(unit: &mut Vec<ConsumedMessage>, summary: &mut Summary) {
    if let Some(first) = unit.first() {
        let (topic, partition, position) = (first.topic(), first.partition(), first.position());
        let left_out = count(unit.len() as u64, "message");
        eprintln!(
            "corelane: the set at {position} of {topic}/{partition} is damaged: {left_out} before the damage left out"
        );
        summary.damaged += unit.len() as u64;
        unit.clear();
    }
}

/// The next message; what cannot be unpacked is told, counted and left out.
async fn next(consumer: &mut Consumer, summary: &mut Summary) -> Result<Option<ConsumedMessage>, ConsumeError> {
    loop {
        match consumer.next().await.transpose() {
            Err(error @ ConsumeError::Undecodable { .. }) => {
                summary.damaged += 1;
                eprintln!("corelane: {error}; left out");
            }
            other => return other,
        }
    }
}
