//! Where a partition's next file begins: behind the newest one, whatever else is running. Where there is none, where this
//! run, the group or an earlier run has got to; in the first run of all where it is told. What retention has taken in
//! between is counted, once.

use std::io;
use std::path::{Path, PathBuf};

use corelane_client::{Find, Found};

use super::Summary;
use super::file::next_position;
use super::load::Load;
use super::names;
use super::now_ms;
use crate::error::CliError;
use crate::parse::place::Place;

/// Where a partition's next file begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begin {
    /// How far it was exported before, if that is known: what is missing from there on was taken by retention.
    pub(super) after: Option<u64>,
    pub(super) position: u64,
    /// Where the log begins.
    pub(super) log_start: u64,
}

/// The refusal of a newest file that does not say where the next one begins.
pub(super) fn damaged(path: &Path, cause: &io::Error) -> CliError {
    CliError::Consume(format!(
        "{}: {cause}. It is the newest file, which says where the next one begins: put it back from a copy, or move it away, \
         and what it held is exported again behind the file before it",
        path.display()
    ))
}

impl Load<'_> {
    /// The newest file of the log, if there is one.
    pub(super) fn newest_file(&self) -> Result<Option<PathBuf>, CliError> {
        let mut found = names::find(&self.args.to, self.args.format).map_err(|cause| self.failed(cause))?;
        let newest = found.remove(&self.of).and_then(|mut files| files.pop_last());
        Ok(newest.filter(|(first, _)| first.epoch == self.epoch).map(|(_, path)| path))
    }

    pub(super) async fn find_begin(&self) -> Result<Begin, CliError> {
        let (args, partition, epoch) = (self.args, self.partition, self.epoch);
        let found = names::find(&args.to, args.format).map_err(|cause| self.failed(cause))?;
        let bounds = self.client.admin().find(&args.topic, partition, Find::Latest).await?;
        let log_start = bounds.start;
        let newest = found.get(&self.of).and_then(|files| files.last_key_value());
        let after = match newest {
            Some((first, path)) if first.epoch == epoch => {
                let next = next_position(path, *first, args.format);
                Some(next.map_err(|cause| damaged(path, &cause))?)
            }
            Some((first, path)) if first.epoch > epoch => {
                return Err(CliError::Argument(format!(
                    "{} is of epoch {}, and {}/{partition} has epoch {epoch}: it belongs to another topic, or to a later life",
                    path.display(),
                    first.epoch,
                    args.topic
                )));
            }
            // This run has been here before.
            _ if self.begin.is_some() => self.begin.map(|begin| begin.after.unwrap_or(begin.position)),
            // The log began again: all of it is new.
            Some(_) => return Ok(Begin { after: None, position: bounds.start, log_start }),
            None => {
                let committed = self.group.and_then(|group| group.committed(partition, epoch));
                committed.or_else(|| self.past.begun(partition, epoch))
            }
        };
        let position = match after {
            Some(next) if next > bounds.end => {
                return Err(self.another_log(&format!(
                    "{}/{partition} was exported up to {next}, and its log ends at {}",
                    args.topic, bounds.end
                )));
            }
            Some(next) => next.max(bounds.start),
            None if self.past.is_first => self.first_position(&bounds).await?,
            // It was not there when the first run began.
            None => bounds.start,
        };
        Ok(Begin { after, position, log_start })
    }

    /// Where `--from` says to begin.
    async fn first_position(&self, bounds: &Found) -> Result<u64, CliError> {
        let find = match self.args.begin.from {
            Place::Earliest => Find::Earliest,
            Place::Latest => Find::Latest,
            Place::Position(position) => return Ok(position.clamp(bounds.start, bounds.end)),
            Place::Time(moment) => Find::TimeMs(moment.unix_ms(now_ms())),
        };
        Ok(self.client.admin().find(&self.args.topic, self.partition, find).await?.position)
    }

    /// Tells and counts what retention has taken before the next file could begin.
    pub(super) fn count_missed(&mut self, begin: Begin, summary: &mut Summary) {
        let Some(after) = begin.after else { return };
        let missed = begin.position.saturating_sub(after.max(self.settled_until));
        if missed > 0 {
            eprintln!(
                "corelane: retention has taken {missed} bytes of {}/{} before they were exported",
                self.args.topic, self.partition
            );
            summary.missed_bytes += missed;
            self.settled_until = begin.position;
        }
    }
}
