//! What a member subscribes to: topics by name, or a pattern that names must match; and the patterns that were compiled, as
//! compiling one costs more than matching it with every topic. Pure.

use std::collections::BTreeMap;

use corelane_proto::ids::TopicName;
use regex::bytes::{Regex, RegexBuilder};

use super::GroupError;
use super::view::TopicState;
use crate::limits::{PATTERN_BYTES_MAX, PATTERN_PROGRAM_BYTES_MAX, PATTERNS_KEPT_MAX, SUBSCRIBED_NAMES_MAX};

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
                Err(regex::Error::CompiledTooBig(limit)) => {
                    let remedy = "give smaller repetitions, or classes of ASCII like [a-z]";
                    invalid("pattern", format!("the pattern is compiled to more than {limit} bytes; {remedy}"))
                }
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
            Self::Pattern(regex, _) => regex.is_match(name.as_str().as_bytes()),
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

/// The patterns of members, each compiled when a decision first needs it.
#[derive(Debug, Default)]
pub struct Patterns {
    /// None: it cannot be compiled.
    kept: BTreeMap<String, Option<Subscription>>,
    #[cfg(test)]
    pub(super) compiled: usize,
}

impl Patterns {
    /// The subscription to a pattern. It was checked when its member joined, by a broker of another version maybe: one that
    /// cannot be compiled here is named in the log and covers no topic.
    pub fn get(&mut self, pattern: &str) -> Option<&Subscription> {
        if !self.kept.contains_key(pattern) {
            if self.kept.len() >= PATTERNS_KEPT_MAX {
                self.kept.clear();
            }
            #[cfg(test)]
            {
                self.compiled += 1;
            }
            let subscription = Subscription::new(&[], pattern)
                .inspect_err(|error| tracing::error!(pattern, %error, "a member's pattern covers no topic"));
            self.kept.insert(pattern.to_owned(), subscription.ok());
        }
        self.kept.get(pattern)?.as_ref()
    }
}

/// The whole name must match. The library matches in time linear in the name, whatever the pattern.
fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    let limited = |pattern: &str, unicode| {
        let mut builder = RegexBuilder::new(pattern);
        builder.unicode(unicode).size_limit(PATTERN_PROGRAM_BYTES_MAX).dfa_size_limit(PATTERN_PROGRAM_BYTES_MAX).build()
    };
    // Names are ASCII: a class like `\w` need not hold all of Unicode's letters, unless the pattern asks for those.
    let build = |pattern: &str| limited(pattern, false).or_else(|_| limited(pattern, true));
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
    fn patterns_of_every_usual_kind_are_small_enough() {
        for pattern in [
            r"(\w+)\.(\w+)-\d+",
            r"[\w.-]{1,249}",
            r"\d{4}-\d{2}-\d{2}-.*",
            r"(?i)views-.*",
            r"\p{L}+",
            r"[^.]+\.(eu|us)\.[^.]+",
        ] {
            assert!(Subscription::new(&[], pattern).is_ok(), "{pattern}");
        }
        let large = Subscription::new(&[], r"\p{L}{20}").expect_err("a program of a megabyte");
        assert!(large.to_string().contains("smaller repetitions"), "{large}");
        let unicode = Subscription::new(&[], r"\p{Lu}.*").expect("a pattern");
        assert!(unicode.matches(&name("Views")) && !unicode.matches(&name("views")));
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
