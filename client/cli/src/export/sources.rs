//! What `import` reads: the files of one topic, of one life of it, in one format; everything that can be refused by the names
//! is refused before the first message is published.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::args::{FileFormat, ImportArgs};
use super::names;
use super::origin::Origin;
use crate::copied;
use crate::error::CliError;

/// A file to import.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) format: FileFormat,
    pub(super) partition: u32,
}

/// All files to import, in order.
pub(super) struct Sources {
    pub(super) files: Vec<Source>,
    /// How many partitions the topic had that they were exported from, if that is known.
    pub(super) partitions: Option<u32>,
}

/// Finds the files that are meant, by partition and in order.
pub(super) fn find(args: &ImportArgs) -> Result<Sources, CliError> {
    let failed = |cause| CliError::File { path: args.directory.clone(), cause };
    let (mut topics, mut ids, mut formats) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut files = Vec::new();
    for format in [FileFormat::Parquet, FileFormat::Jsonl, FileFormat::Raw] {
        if args.format.is_some_and(|wanted| wanted != format) {
            continue;
        }
        for (of, found) in names::find(&args.directory, format).map_err(failed)? {
            let is_meant = args.source_topic.as_ref().is_none_or(|wanted| *wanted == of.topic)
                && args.topic_id.as_ref().is_none_or(|wanted| *wanted == of.id);
            if is_meant {
                let partition = of.partition;
                files.extend(found.into_values().map(|path| Source { path, format, partition }));
                topics.insert(of.topic);
                ids.insert(of.id);
                formats.insert(format.extension());
            }
        }
    }
    let directory = &args.directory;
    let topic = one(&topics, directory, "of several topics", "--source-topic")?;
    let id = one(&ids, directory, "of several topics of this name, one created after the other", "--topic-id")?;
    one(&formats, directory, "in several formats", "--format")?;
    let partitions = Origin::read(directory, topic, id).map_err(failed)?.map(|origin| origin.partitions);
    Ok(Sources { files, partitions })
}

/// The only one of these; several are refused with the option that names one.
fn one<'a, T: AsRef<str>>(
    found: &'a BTreeSet<T>,
    directory: &Path,
    what: &str,
    option: &str,
) -> Result<&'a str, CliError> {
    let names: Vec<&str> = found.iter().map(AsRef::as_ref).collect();
    let directory = directory.display();
    match names[..] {
        [name] => Ok(name),
        [] => Err(CliError::Argument(format!("{directory}: there are no such exported files in it"))),
        _ => {
            let names = names.join(", ");
            Err(CliError::Argument(format!("{directory} has files {what}: {names}; say which with {option}")))
        }
    }
}

impl Sources {
    /// Refuses what cannot go into a topic of so many partitions.
    pub(super) fn check(&self, topic: &str, partitions: u32, keep_partitions: bool) -> Result<(), CliError> {
        let is_raw = self.files.iter().any(|file| file.format == FileFormat::Raw);
        if !is_raw && !keep_partitions {
            return Ok(());
        }
        let last = self.files.iter().map(|file| file.partition).max().unwrap_or(0);
        let why = if is_raw { "raw files go back to their own" } else { "--keep-partitions takes each to its own" };
        if last >= partitions {
            return Err(CliError::Argument(format!(
                "{topic} has no partition {last} ({partitions} in all), and {why}: nothing was published"
            )));
        }
        match self.partitions {
            Some(before) if before != partitions && !keep_partitions => Err(CliError::Argument(format!(
                "{topic} has {partitions} partitions, what was exported had {before}, and {why}, so keys would not lie where \
                 they belong: nothing was published; --keep-partitions does it all the same"
            ))),
            _ => Ok(()),
        }
    }

    /// Where a message goes; none: where its key belongs.
    pub(super) fn place(&self, partition: u32, has_key: bool, partitions: u32, keep_partitions: bool) -> Option<u32> {
        let is_parallel = keep_partitions || self.partitions == Some(partitions);
        copied::partition(partition, has_key, partitions, is_parallel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_keeps_its_partition_where_the_counts_agree_or_it_is_told_to() {
        let sources = |partitions| Sources { files: Vec::new(), partitions };
        assert_eq!(sources(Some(4)).place(3, true, 4, false), Some(3));
        assert_eq!(sources(Some(4)).place(3, true, 8, false), None);
        assert_eq!(sources(Some(4)).place(3, true, 8, true), Some(3));
        assert_eq!(sources(None).place(3, true, 4, false), None);
        assert_eq!(sources(None).place(3, false, 2, false), Some(1));
    }
}
