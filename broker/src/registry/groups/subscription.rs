//! What a member subscribes to: topics by name, or a pattern that names must match. Pure.

use std::collections::BTreeMap;

use corelane_proto::ids::TopicName;
use regex::{Regex, RegexBuilder};

use super::GroupError;
use super::view::TopicState;
use crate::limits::{PATTERN_BYTES_MAX, PATTERN_PROGRAM_BYTES_MAX, SUBSCRIBED_NAMES_MAX};

/// What a member subscribes to.
#[derive(Clone, Debug)]
pub enum Subscription {
    /// These, whether or not they exist.
    Names(Vec<TopicName>),
    /// Those whose whole name matches.
    Pattern(Box<Regex>, String),
}

impl Subscription {
    /// Checks what a client asks for.
    pub fn new(names: &[String], pattern: &str) -> Result<Self, GroupError> {
        let invalid = |field, message: String| Err(GroupError::Invalid { field, message });
        match (names, pattern) {
            ([], "") => invalid("topics", "a member subscribes to at least one topic, or to a pattern".to_owned()),
            ([], pattern) if pattern.len() > PATTERN_BYTES_MAX => {
                invalid("pattern", format!("a pattern has at most {PATTERN_BYTES_MAX} bytes"))
            }
            ([], pattern) => match compile(pattern) {
                Ok(regex) => Ok(Self::Pattern(Box::new(regex), pattern.to_owned())),
                Err(error) => invalid("pattern", format!("not a regular expression: {error}")),
            },
            (names, "") if names.len() > SUBSCRIBED_NAMES_MAX => {
                Err(GroupError::TooMany { what: "topics of one member", limit: SUBSCRIBED_NAMES_MAX })
            }
            (names, "") => {
                let checked: Result<Vec<TopicName>, _> = names.iter().map(|name| TopicName::new(name)).collect();
                match checked {
                    Ok(mut names) => {
                        names.sort();
                        names.dedup();
                        Ok(Self::Names(names))
                    }
                    Err(error) => invalid("topics", error.to_string()),
                }
            }
            _ => invalid("pattern", "a member subscribes to topics or to a pattern, not to both".to_owned()),
        }
    }

    /// Whether it covers a topic of this name.
    pub fn matches(&self, name: &TopicName) -> bool {
        match self {
            Self::Names(names) => names.binary_search(name).is_ok(),
            Self::Pattern(regex, _) => regex.is_match(name.as_str()),
        }
    }

    /// Those that exist of the topics that it covers.
    pub fn topics<'t>(
        &'t self,
        topics: &'t BTreeMap<TopicName, TopicState>,
    ) -> impl Iterator<Item = (&'t TopicName, &'t TopicState)> {
        topics.iter().filter(|(name, _)| self.matches(name))
    }
}

/// The whole name must match. The library matches in time linear in the name, whatever the pattern.
fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    let build = |pattern: &str| RegexBuilder::new(pattern).size_limit(PATTERN_PROGRAM_BYTES_MAX).build();
    // By itself first, or one that closes the brackets below would pass.
    build(pattern)?;
    build(&format!("^(?:{pattern})$"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> TopicName {
        TopicName::new(name).expect("a name")
    }

    #[test]
    fn patterns_match_whole_names() {
        let pattern = Subscription::new(&[], "views|clicks-.*").expect("a pattern");
        for (topic, is_covered) in [("views", true), ("clicks-eu", true), ("views2", false), ("my-views", false)] {
            assert_eq!(pattern.matches(&name(topic)), is_covered, "{topic}");
        }
    }

    #[test]
    fn what_cannot_be_subscribed_to_is_refused_with_the_field() {
        let field = |names: &[&str], pattern: &str| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            match Subscription::new(&names, pattern) {
                Err(GroupError::Invalid { field, .. }) => field,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(field(&[], ""), "topics");
        assert_eq!(field(&["a b"], ""), "topics");
        assert_eq!(field(&["a"], "b"), "pattern");
        assert_eq!(field(&[], "("), "pattern");
        assert_eq!(field(&[], "a)|(b"), "pattern");
        assert_eq!(field(&[], "((a{1000}){1000}){1000}"), "pattern");
        assert_eq!(field(&[], &"a".repeat(PATTERN_BYTES_MAX + 1)), "pattern");
    }
}
