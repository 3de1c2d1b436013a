//! What earlier runs have left: in the directory, and in the group. `--from` says where the first run begins and nothing
//! else; what a later run meets for the first time (an added partition, a topic that was created again) is read from its
//! start, or what came between two runs would be skipped for good.

use std::io;

use super::args::ExportArgs;
use super::group::Group;
use super::load::Load;
use super::names::{self, Exported};
use super::origin::{self, Begun, Origin};
use crate::error::CliError;

/// See the head of this file.
pub(super) struct Past {
    id: String,
    origin: Origin,
    begun: Begun,
    /// Nothing was exported before, so that `--from` counts.
    pub(super) is_first: bool,
}

impl Past {
    /// Looks at what there is; tells of a topic that was created again.
    pub(super) fn look(args: &ExportArgs, id: &str, group: Option<&Group>) -> io::Result<Self> {
        let found = names::find(&args.to, args.format)?;
        let is_of = |of: &Exported| of.topic == args.topic && of.id == id;
        let has_files = found.iter().any(|(of, files)| is_of(of) && !files.is_empty());
        let origin = Origin::read(&args.to, &args.topic, id)?.unwrap_or_default();
        let from = format!("{:?}", args.begin.from);
        let begun = origin.begun.get(args.format.extension());
        // Whoever has emptied the directory and says another beginning means it.
        let begun = begun.filter(|begun| has_files || begun.from == from).cloned();
        let mut is_first = !has_files && begun.is_none() && group.is_none_or(Group::is_new);
        if is_first && let Some(other) = other_id(args, id, found.keys())? {
            let topic = &args.topic;
            eprintln!(
                "corelane: topic {topic} was created again: {topic}-{other} in {} is an earlier one; all of the new one is \
                 exported",
                args.to.display()
            );
            is_first = false;
        }
        let begun = begun.unwrap_or_else(|| Begun { from, ..Begun::default() });
        Ok(Self { id: id.to_owned(), origin, begun, is_first })
    }

    /// Where a partition without files was begun before.
    pub(super) fn begun(&self, partition: u32, epoch: u32) -> Option<u64> {
        self.begun.position(partition, epoch)
    }

    /// Keeps where these begin, before anything else does: a run that is killed earlier was none.
    pub(super) fn keep(&self, args: &ExportArgs, partitions: u32, loads: &[Load<'_>]) -> Result<(), CliError> {
        let (mut origin, mut begun) = (self.origin.clone(), self.begun.clone());
        for load in loads {
            if let Some(begin) = load.begin {
                begun.keep(load.partition, load.epoch, begin.position);
            }
        }
        origin.partitions = partitions;
        origin.begun.insert(args.format.extension().to_owned(), begun);
        let written = origin.write(&args.to, &args.topic, &self.id);
        written.map_err(|cause| CliError::File { path: args.to.clone(), cause })
    }
}

/// Another topic of this name that was exported before, in this format.
fn other_id<'f>(
    args: &ExportArgs,
    id: &str,
    mut found: impl Iterator<Item = &'f Exported>,
) -> io::Result<Option<String>> {
    if let Some(other) = found.find(|of| of.topic == args.topic && of.id != id) {
        return Ok(Some(other.id.clone()));
    }
    for other in origin::other_ids(&args.to, &args.topic, id)? {
        let origin = Origin::read(&args.to, &args.topic, &other)?;
        if origin.is_some_and(|origin| origin.begun.contains_key(args.format.extension())) {
            return Ok(Some(other));
        }
    }
    Ok(None)
}
