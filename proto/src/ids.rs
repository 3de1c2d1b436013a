//! The identifiers that the log, the protocol and the tools share. Each is a type of its own, so that a length, a
//! position and an epoch are never taken for one another.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;
use std::sync::Arc;

/// A place in a partition's log, in bytes from its beginning: a message id, an end, or any position between. Positions
/// are comparable only within one [`Epoch`].
///
/// ```
/// use corelane_proto::ids::Position;
/// let id = Position(1000);
/// assert_eq!(id + 200, Position(1200));
/// assert_eq!((id + 200) - id, 200);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl Position {
    /// The beginning of every log.
    pub const ZERO: Position = Position(0);

    /// `self + bytes`, or `None` beyond the largest position. For positions that came from outside.
    pub fn checked_add(self, bytes: u64) -> Option<Position> {
        self.0.checked_add(bytes).map(Position)
    }

    /// `self + bytes`, at most the largest position.
    #[must_use]
    pub fn saturating_add(self, bytes: u64) -> Position {
        Position(self.0.saturating_add(bytes))
    }

    /// How many bytes lie between `earlier` and `self`; 0 when `earlier` is the later one.
    pub fn saturating_since(self, earlier: Position) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for Position {
    type Output = Position;
    fn add(self, bytes: u64) -> Position {
        Position(self.0.checked_add(bytes).expect("a position stays below 2^64"))
    }
}

impl AddAssign<u64> for Position {
    fn add_assign(&mut self, bytes: u64) {
        *self = *self + bytes;
    }
}

impl Sub for Position {
    type Output = u64;
    fn sub(self, earlier: Position) -> u64 {
        assert!(self >= earlier, "position {self} was expected at or after {earlier}");
        self.0 - earlier.0
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl From<u64> for Position {
    fn from(position: u64) -> Position {
        Position(position)
    }
}

impl From<Position> for u64 {
    fn from(position: Position) -> u64 {
        position.0
    }
}

/// Counts the lives of a partition's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The one that every partition begins in.
    pub const FIRST: Self = Self(1);
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A topic's random 128-bit id; a deleted and re-created topic has another. Shown as 32 hex digits.
///
/// ```
/// use corelane_proto::ids::TopicId;
/// let id: TopicId = "00112233445566778899aabbccddeeff".parse().unwrap();
/// assert_eq!(id.short(), "00112233");
/// assert_eq!(id.to_string().parse(), Ok(id));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub [u8; 16]);

impl TopicId {
    /// The first 8 hex digits, as used in directory names.
    pub fn short(&self) -> String {
        let [a, b, c, d, ..] = self.0;
        format!("{a:02x}{b:02x}{c:02x}{d:02x}")
    }

    /// The bytes, as protobuf fields carry them.
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.to_vec()
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicId({self})")
    }
}

/// A topic id is 16 bytes, or 32 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a topic id is 16 bytes, written as 32 hex digits")]
pub struct InvalidTopicId;

impl FromStr for TopicId {
    type Err = InvalidTopicId;
    fn from_str(text: &str) -> Result<TopicId, InvalidTopicId> {
        if text.len() != 32 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(InvalidTopicId);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| InvalidTopicId)?;
        Ok(TopicId(number.to_be_bytes()))
    }
}

impl TryFrom<&[u8]> for TopicId {
    type Error = InvalidTopicId;
    fn try_from(bytes: &[u8]) -> Result<TopicId, InvalidTopicId> {
        bytes.try_into().map(TopicId).map_err(|_| InvalidTopicId)
    }
}

/// Bytes of the longest topic name.
pub const TOPIC_NAME_BYTES_MAX: usize = 200;

/// A topic's name: 1 to 200 of the characters `A-Z a-z 0-9 . _ -`, not `.` nor `..`; so it is safe in paths, in metric
/// labels and in registry keys. Cheap to clone.
///
/// ```
/// use corelane_proto::ids::TopicName;
/// assert!("page-views.v2".parse::<TopicName>().is_ok());
/// assert!("page views".parse::<TopicName>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

impl TopicName {
    /// Checks a name.
    pub fn new(name: &str) -> Result<TopicName, InvalidTopicName> {
        if name.is_empty() || name.len() > TOPIC_NAME_BYTES_MAX {
            return Err(InvalidTopicName::Length { bytes: name.len() });
        }
        if let Some(character) = name.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '_' | '-')) {
            return Err(InvalidTopicName::Character { character });
        }
        if name == "." || name == ".." {
            return Err(InvalidTopicName::Dots);
        }
        Ok(TopicName(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why a topic's name is refused, with the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidTopicName {
    /// Empty or too long.
    #[error("a topic's name has 1 to {TOPIC_NAME_BYTES_MAX} characters, this one has {bytes}")]
    Length {
        /// Its length in bytes.
        bytes: usize,
    },
    /// A character that is not allowed.
    #[error("a topic's name consists of letters A-Z a-z, digits, '.', '_' and '-', not of {character:?}")]
    Character {
        /// The first such character.
        character: char,
    },
    /// `.` or `..`
    #[error("a topic's name cannot be '.' or '..'")]
    Dots,
}

impl FromStr for TopicName {
    type Err = InvalidTopicName;
    fn from_str(name: &str) -> Result<TopicName, InvalidTopicName> {
        TopicName::new(name)
    }
}

impl AsRef<str> for TopicName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for TopicName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names_follow_the_rule() {
        for good in ["a", "A.b_c-9", "...", "x".repeat(200).as_str()] {
            assert_eq!(good.parse::<TopicName>().unwrap().as_str(), good);
        }
        assert_eq!(TopicName::new(""), Err(InvalidTopicName::Length { bytes: 0 }));
        assert_eq!(TopicName::new(&"x".repeat(201)), Err(InvalidTopicName::Length { bytes: 201 }));
        assert_eq!(TopicName::new("."), Err(InvalidTopicName::Dots));
        assert_eq!(TopicName::new(".."), Err(InvalidTopicName::Dots));
        for (bad, character) in [("a/b", '/'), ("a b", ' '), ("é", 'é'), ("a\0", '\0'), ("a~b", '~')] {
            assert_eq!(TopicName::new(bad), Err(InvalidTopicName::Character { character }));
        }
    }

    #[test]
    fn topic_ids_are_hex_both_ways() {
        let id = TopicId(*b"\x00\x01\x02\x03\x04\x05\x06\x07\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8");
        assert_eq!(id.to_string(), "0001020304050607fffefdfcfbfaf9f8");
        assert_eq!("0001020304050607FFFEFDFCFBFAF9F8".parse(), Ok(id));
        assert_eq!(TopicId::try_from(&id.to_vec()[..]), Ok(id));
        for bad in ["", "00", "+001020304050607fffefdfcfbfaf9f8", "0001020304050607fffefdfcfbfaf9f80"] {
            assert_eq!(bad.parse::<TopicId>(), Err(InvalidTopicId));
        }
        assert_eq!(TopicId::try_from(&[0; 15][..]), Err(InvalidTopicId));
    }

    #[test]
    fn positions_from_outside_can_be_added_without_overflow() {
        assert_eq!(Position(u64::MAX).checked_add(1), None);
        assert_eq!(Position(u64::MAX).saturating_add(1), Position(u64::MAX));
        assert_eq!(Position(3).saturating_since(Position(5)), 0);
    }
}
