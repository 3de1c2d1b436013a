//! The names of exported files, and where the next one begins. A name says what its file begins with and nothing else, so of
//! two files that begin with the same message only one can exist, however far they go. Pure, but for the walk.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::args::FileFormat;

/// What a file begins with: epochs first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct First {
    pub(super) epoch: u32,
    pub(super) position: u64,
}

/// The files of a topic's partition, by what they begin with.
pub(super) type Files = BTreeMap<First, PathBuf>;

/// A partition of which there are files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Exported {
    pub(super) topic: String,
    /// The first digits of the topic's id: one that is deleted and created again has others.
    pub(super) id: String,
    pub(super) partition: u32,
}

/// Digits of a topic's id in a name: its short form.
const ID_DIGITS: usize = 8;

/// `TOPIC-ID-PARTITION-EPOCH-POSITION.EXTENSION`, so that names sort as their messages do.
pub(super) fn name(of: &Exported, first: First, format: FileFormat) -> String {
    let (Exported { topic, id, partition }, First { epoch, position }) = (of, first);
    format!("{topic}-{id}-{partition:05}-{epoch:08}-{position:020}.{}", format.extension())
}

/// Takes a name apart: of what it is a file, and its first message.
pub(super) fn parse(name: &str, format: FileFormat) -> Option<(Exported, First)> {
    let stem = name.strip_suffix(format.extension())?.strip_suffix('.')?;
    let mut parts = stem.rsplitn(5, '-');
    let mut number = |digits: usize| {
        let part = parts.next()?;
        (part.len() >= digits && part.bytes().all(|byte| byte.is_ascii_digit())).then_some(part)
    };
    let position = number(20)?.parse().ok()?;
    let epoch = number(8)?.parse().ok()?;
    let partition = number(5)?.parse().ok()?;
    let id = parts.next()?.to_owned();
    let topic = parts.next().filter(|_| is_id(&id))?.to_owned();
    Some((Exported { topic, id, partition }, First { epoch, position }))
}

/// Whether these are the digits of a topic's id in a name.
pub(super) fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// All exported files of a format in a directory and in its `date=` directories, by topic, id and partition. Directories
/// may be links to where there is more room; one that leads nowhere holds nothing.
pub(super) fn find(directory: &Path, format: FileFormat) -> io::Result<BTreeMap<Exported, Files>> {
    let mut found: BTreeMap<Exported, Files> = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    let mut is_top = true;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(DATE) && entry.path().is_dir() {
                if is_top {
                    directories.push(entry.path());
                }
            } else if let Some((of, first)) = parse(name, format)
                && let Some(other) = found.entry(of).or_default().insert(first, entry.path())
            {
                let reason = format!("{} and {} have the same name", other.display(), entry.path().display());
                return Err(io::Error::other(reason));
            }
        }
        // Days lie side by side; looking deeper, a link to a directory above would have no end.
        is_top = false;
    }
    Ok(found)
}

/// How the directories of a day begin.
const DATE: &str = "date=";

/// The directory of a day.
pub(super) fn date_directory(day: i64) -> String {
    let date = jiff::civil::date(1970, 1, 1).checked_add(jiff::Span::new().days(day.clamp(-700_000, 2_900_000)));
    format!("{DATE}{}", date.expect("a day within the calendar"))
}

/// The day of a message's time, since 1970, UTC.
pub(super) fn day_of(timestamp_ms: i64) -> i64 {
    timestamp_ms.div_euclid(24 * 3_600_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_file_begins_with_and_sort_as_messages_do() {
        let first = First { epoch: 2, position: 1_234_567 };
        let of = Exported { topic: "page-views".to_owned(), id: "00c0ffee".to_owned(), partition: 7 };
        let text = name(&of, first, FileFormat::Parquet);
        assert_eq!(text, "page-views-00c0ffee-00007-00000002-00000000000001234567.parquet");
        assert_eq!(parse(&text, FileFormat::Parquet), Some((of.clone(), first)));
        assert_eq!(parse(&text, FileFormat::Raw), None);
        let later = name(&of, First { epoch: 2, position: 20_000_000 }, FileFormat::Parquet);
        let anew = name(&of, First { epoch: 3, position: 0 }, FileFormat::Parquet);
        assert!(text < later && later < anew);
        for other in
            ["notes.parquet", "t-1-2-3.parquet", "t-00c0ffee-00001-00000001-0000000000000000000x.parquet", ".parquet"]
        {
            assert_eq!(parse(other, FileFormat::Parquet), None, "{other}");
        }
    }

    #[test]
    fn a_file_that_lies_in_two_directories_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let name = "t-00c0ffee-00000-00000001-00000000000000000000.jsonl";
        for day in ["date=2026-07-01", "date=2026-07-02"] {
            std::fs::create_dir(dir.path().join(day)).unwrap();
            std::fs::write(dir.path().join(day).join(name), "").unwrap();
        }
        let refusal = find(dir.path(), FileFormat::Jsonl).unwrap_err().to_string();
        assert!(refusal.contains("07-01") && refusal.contains("07-02"), "{refusal}");
        assert!(find(dir.path(), FileFormat::Raw).unwrap().is_empty());
    }

    #[test]
    fn directories_that_are_links_are_looked_into_and_have_an_end() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let name = "t-00c0ffee-00000-00000001-00000000000000000000.jsonl";
        std::fs::write(elsewhere.path().join(name), "").unwrap();
        for (target, link) in [(elsewhere.path(), "date=2026-07-01"), (Path::new("/nowhere"), "date=2026-07-02")] {
            std::os::unix::fs::symlink(target, dir.path().join(link)).unwrap();
        }
        assert_eq!(find(dir.path(), FileFormat::Jsonl).unwrap().len(), 1);
        std::os::unix::fs::symlink(dir.path(), elsewhere.path().join("date=2026-07-03")).unwrap();
        assert_eq!(find(dir.path(), FileFormat::Jsonl).unwrap().len(), 1);
    }

    #[test]
    fn days_are_those_of_utc_and_no_time_is_beyond_them() {
        assert_eq!(date_directory(day_of(1_782_864_000_000)), "date=2026-07-01");
        assert_eq!(date_directory(day_of(1_782_863_999_999)), "date=2026-06-30");
        assert_eq!(date_directory(day_of(-1)), "date=1969-12-31");
        for extreme in [i64::MIN, i64::MAX] {
            assert!(date_directory(day_of(extreme)).starts_with(DATE), "{extreme}");
        }
    }
}
