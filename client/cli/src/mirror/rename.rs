//! What a mirrored topic is called in the target: `OLD=NEW`, each with at most one `*` that stands for the same text on both
//! sides. The first rule that fits decides; without one the name stays. Pure.

use std::str::FromStr;

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rename {
    old: Pattern,
    new: Pattern,
}

/// A name with at most one hole.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    before: String,
    after: Option<String>,
}

impl Pattern {
    fn read(text: &str) -> Option<Self> {
        match text.split_once('*') {
            None => Some(Self { before: text.to_owned(), after: None }),
            Some((_, after)) if after.contains('*') => None,
            Some((before, after)) => Some(Self { before: before.to_owned(), after: Some(after.to_owned()) }),
        }
    }

    /// What the hole holds in this name; empty where there is no hole.
    fn matches<'n>(&self, name: &'n str) -> Option<&'n str> {
        match &self.after {
            None => (name == self.before).then_some(""),
            Some(after) => name.strip_prefix(&*self.before)?.strip_suffix(&**after),
        }
    }

    fn filled(&self, hole: &str) -> String {
        match &self.after {
            None => self.before.clone(),
            Some(after) => format!("{}{hole}{after}", self.before),
        }
    }
}

impl FromStr for Rename {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refusal = || format!("`{text}` is no renaming; write OLD=NEW, for example orders=orders-eu or '*=eu.*'");
        let (old, new) = text.split_once('=').ok_or_else(refusal)?;
        let (old, new) = (Pattern::read(old).ok_or_else(refusal)?, Pattern::read(new).ok_or_else(refusal)?);
        let is_empty = |pattern: &Pattern| pattern.before.is_empty() && pattern.after.is_none();
        if is_empty(&old) || is_empty(&new) || (new.after.is_some() && old.after.is_none()) {
            return Err(refusal());
        }
        Ok(Self { old, new })
    }
}

/// The name of a topic in the target.
pub(super) fn renamed(rules: &[Rename], topic: &str) -> String {
    let by = rules.iter().find_map(|rule| rule.old.matches(topic).map(|hole| rule.new.filled(hole)));
    by.unwrap_or_else(|| topic.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_fits_names_the_topic() {
        let rules: Vec<Rename> =
            ["orders=orders-eu", "log.*=*.log", "*.raw=raw"].iter().map(|rule| rule.parse().unwrap()).collect();
        for (topic, name) in [
            ("orders", "orders-eu"),
            ("orders2", "orders2"),
            ("log.web", "web.log"),
            ("log.", ".log"),
            ("x.raw", "raw"),
            ("log.x.raw", "x.raw.log"),
        ] {
            assert_eq!(renamed(&rules, topic), name, "{topic}");
        }
        assert_eq!(renamed(&["*=eu.*".parse().unwrap()], "t"), "eu.t");
    }

    #[test]
    fn what_is_no_renaming_is_refused_with_an_example() {
        for text in ["", "a", "=b", "a=", "a=*", "a**=b", "*=b**"] {
            assert!(text.parse::<Rename>().unwrap_err().contains("orders=orders-eu"), "{text}");
        }
    }

    #[test]
    fn a_text_that_both_ends_of_a_pattern_would_need_is_no_match() {
        assert_eq!(renamed(&["ab*ba=x".parse().unwrap()], "aba"), "aba");
    }
}
