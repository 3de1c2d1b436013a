//! What a partition's directory holds: the segments in order, what is left over, what is not ours. Pure.

use corelane_proto::ids::{Epoch, Position};

use crate::env::DirEntry;
use crate::names::{self, FileKind};

/// A segment file as the directory shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentFile {
    pub(crate) base: u64,
    pub(crate) epoch: Epoch,
    pub(crate) bytes: u64,
    pub(crate) modified_ms: i64,
}

impl SegmentFile {
    pub(crate) fn name(&self) -> String {
        names::segment(Position(self.base), self.epoch)
    }

    /// Where its file ends, in positions.
    pub(crate) fn file_end(&self) -> u64 {
        self.base.saturating_add(self.bytes)
    }
}

/// A directory, sorted out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// By base.
    pub(crate) segments: Vec<SegmentFile>,
    /// Ours, and of no use any more: unfinished files, summaries without their segment, earlier starts.
    pub(crate) leftovers: Vec<String>,
    /// Where the log begins, as a file's name says: no segment above is the first one. `None`: nothing says.
    pub(crate) start: Option<u64>,
    /// Copies of what recovery cut off: the operator's.
    pub(crate) cuts: Vec<String>,
    /// Not ours: left alone.
    pub(crate) foreign: Vec<String>,
}

/// Bytes of the log that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Layout {
    pub(crate) fn read(entries: &[DirEntry]) -> Layout {
        let mut layout = Layout::default();
        let mut summaries = Vec::new();
        let mut starts = Vec::new();
        for entry in entries {
            match names::classify(&entry.name) {
                _ if entry.is_dir => layout.foreign.push(entry.name.clone()),
                FileKind::Segment(base, epoch) => layout.segments.push(SegmentFile {
                    base: base.0,
                    epoch,
                    bytes: entry.bytes,
                    modified_ms: entry.modified_ms,
                }),
                FileKind::Summary(base, epoch) => summaries.push((base.0, epoch, entry.name.clone())),
                FileKind::Start(at) => starts.push((at.0, entry.name.clone())),
                FileKind::Prepared | FileKind::Temporary => layout.leftovers.push(entry.name.clone()),
                FileKind::Cut => layout.cuts.push(entry.name.clone()),
                FileKind::Foreign => layout.foreign.push(entry.name.clone()),
            }
        }
        layout.segments.sort_by_key(|segment| (segment.base, segment.epoch));
        // The highest: what is forgotten too early is missed by nobody.
        layout.start = starts.iter().map(|(at, _)| *at).max();
        let earlier = starts.into_iter().filter(|(at, _)| Some(*at) != layout.start);
        layout.leftovers.extend(earlier.map(|(_, name)| name));
        for (base, epoch, name) in summaries {
            if !layout.segments.iter().any(|segment| (segment.base, segment.epoch) == (base, epoch)) {
                layout.leftovers.push(name);
            }
        }
        layout
    }

    /// The bytes that the log had at its beginning, and that no segment has now.
    pub(crate) fn missing_start(&self) -> Option<Gap> {
        let (from, to) = (self.start?, self.segments.first()?.base);
        (from < to).then_some(Gap { from, to })
    }

    /// The first place where a segment does not reach the next one.
    pub(crate) fn gap(&self) -> Option<Gap> {
        let pairs = self.segments.iter().zip(&self.segments[1.min(self.segments.len())..]);
        pairs
            .filter(|(segment, next)| segment.file_end() < next.base || segment.base == next.base)
            .map(|(segment, next)| Gap { from: segment.file_end().min(next.base), to: next.base })
            .next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, bytes: u64) -> DirEntry {
        DirEntry { name: name.to_owned(), is_dir: false, bytes, modified_ms: 0 }
    }

    fn segment(base: u64, bytes: u64) -> DirEntry {
        file(&names::segment(Position(base), Epoch(1)), bytes)
    }

    #[test]
    fn a_directory_is_sorted_out() {
        let layout = Layout::read(&[
            segment(500, 100),
            segment(0, 500),
            file("next.prepared", 0),
            file("notes.txt", 3),
            file(&names::start(Position(0)), 0),
            file(&names::summary(Position(0), Epoch(1)), 3),
            file(&names::summary(Position(7), Epoch(1)), 3),
            file("00000000000000000000-00000001.log.cut-17", 3),
            DirEntry { is_dir: true, ..file("lost+found", 0) },
        ]);
        assert_eq!(layout.segments.iter().map(|segment| segment.base).collect::<Vec<_>>(), [0, 500]);
        assert_eq!(layout.leftovers, ["next.prepared", "00000000000000000007-00000001.summary"]);
        assert_eq!(layout.cuts, ["00000000000000000000-00000001.log.cut-17"]);
        assert_eq!(layout.foreign, ["notes.txt", "lost+found"]);
        assert_eq!(layout.gap(), None);
    }

    #[test]
    fn what_is_missing_below_the_first_segment_is_told_by_the_file_that_names_the_start() {
        let start = |at| file(&names::start(Position(at)), 0);
        let missing = |entries: &[DirEntry]| Layout::read(entries).missing_start();
        assert_eq!(missing(&[start(0), segment(500, 9)]), Some(Gap { from: 0, to: 500 }));
        assert_eq!(missing(&[start(500), segment(500, 9)]), None);
        assert_eq!(missing(&[start(500), segment(0, 500), segment(500, 9)]), None, "an unlink that was taken back");
        assert_eq!(missing(&[segment(500, 9)]), None, "nobody knows");
        let layout = Layout::read(&[start(500), start(0), segment(500, 9)]);
        assert_eq!((layout.missing_start(), &layout.leftovers[..]), (None, &[names::start(Position(0))][..]));
    }

    #[test]
    fn a_segment_that_does_not_reach_the_next_is_a_gap() {
        assert_eq!(Layout::read(&[segment(0, 499), segment(500, 0)]).gap(), Some(Gap { from: 499, to: 500 }));
        assert_eq!(
            Layout::read(&[segment(0, 9000), segment(500, 0)]).gap(),
            None,
            "longer is well: it was not trimmed yet"
        );
        assert_eq!(Layout::read(&[segment(500, 0)]).gap(), None);
        assert_eq!(Layout::read(&[]).gap(), None);
    }
}
