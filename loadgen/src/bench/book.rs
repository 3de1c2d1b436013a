//! What was measured, and what is to be said of it. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::json;

use crate::machine::Machine;
use crate::targets::{Bound, TARGETS, Target};

/// What is said of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Held,
    /// The median misses, the best round does not: more rounds, or a quieter machine, must decide.
    WithinTheSpread,
    Missed,
    /// Another limit of this machine makes the figure impossible.
    NotAsked,
    /// Nothing is asked of it.
    Told,
}

/// The samples of all lines, one a round.
#[derive(Debug, Default)]
pub(crate) struct Book {
    samples: BTreeMap<&'static str, Vec<f64>>,
    not_asked: BTreeMap<&'static str, &'static str>,
}

impl Book {
    /// Notes a sample.
    pub(crate) fn note(&mut self, id: &'static str, value: f64) {
        assert!(TARGETS.iter().any(|target| target.id == id), "{id} is a line of the table");
        self.samples.entry(id).or_default().push(value);
    }

    /// The figure is not asked for on this machine.
    pub(crate) fn excuse(&mut self, id: &'static str, reason: &'static str) {
        self.not_asked.insert(id, reason);
    }

    /// The sample of this round.
    pub(crate) fn last(&self, id: &str) -> Option<f64> {
        self.samples.get(id)?.last().copied()
    }

    fn verdict(&self, target: &Target) -> Option<Verdict> {
        let samples = self.samples.get(target.id)?;
        let (low, high) = range(samples);
        let meets = |value: f64| match target.bound {
            Bound::AtLeast(bound) => value >= bound,
            Bound::AtMost(bound) => value <= bound,
            Bound::None => true,
        };
        Some(match target.bound {
            Bound::None => Verdict::Told,
            _ if meets(median(samples)) => Verdict::Held,
            _ if self.not_asked.contains_key(target.id) => Verdict::NotAsked,
            _ if meets(low) || meets(high) => Verdict::WithinTheSpread,
            _ => Verdict::Missed,
        })
    }

    /// Whether no line was missed.
    pub(crate) fn is_held(&self) -> bool {
        TARGETS.iter().all(|target| self.verdict(target) != Some(Verdict::Missed))
    }

    /// The table.
    pub(crate) fn to_text(&self) -> String {
        let mut text = format!(
            "{:<18} {:>9} {:>19} {:>9} {:<9} {:<17} {}\n",
            "", "median", "lowest .. highest", "asked", "", "", "what"
        );
        for target in TARGETS {
            let (Some(samples), Some(verdict)) = (self.samples.get(target.id), self.verdict(target)) else { continue };
            let (low, high) = range(samples);
            let asked = match target.bound {
                Bound::AtLeast(bound) => format!(">= {}", figure(bound)),
                Bound::AtMost(bound) => format!("<= {}", figure(bound)),
                Bound::None => String::new(),
            };
            let said = match verdict {
                Verdict::Held => "held",
                Verdict::WithinTheSpread => "within the spread",
                Verdict::Missed => "MISSED",
                Verdict::NotAsked => "not asked",
                Verdict::Told => "",
            };
            let spread = format!("{} .. {}", figure(low), figure(high));
            let (median, why) = (figure(median(samples)), self.not_asked.get(target.id).copied().unwrap_or_default());
            let why = if verdict == Verdict::NotAsked { format!(" ({why})") } else { String::new() };
            let _ = writeln!(
                text,
                "{:<18} {median:>9} {spread:>19} {asked:>9} {:<9} {said:<17} {}{why}",
                target.id, target.unit, target.title
            );
        }
        text
    }

    /// Everything, for programs.
    pub(crate) fn to_json(&self, machine: &Machine) -> String {
        let lines: Vec<_> = TARGETS
            .iter()
            .filter_map(|target| {
                let samples = self.samples.get(target.id)?;
                let (low, high) = range(samples);
                let (at_least, at_most) = match target.bound {
                    Bound::AtLeast(bound) => (Some(bound), None),
                    Bound::AtMost(bound) => (None, Some(bound)),
                    Bound::None => (None, None),
                };
                Some(json!({
                    "id": target.id, "what": target.title.trim_start(), "unit": target.unit,
                    "at_least": at_least, "at_most": at_most, "verdict": self.verdict(target),
                    "median": median(samples), "lowest": low, "highest": high, "samples": samples,
                }))
            })
            .collect();
        let document = json!({ "machine": machine, "lines": lines });
        format!("{document:#}\n")
    }
}

/// As many digits as say something.
fn figure(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn range(samples: &[f64]) -> (f64, f64) {
    samples.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &value| (low.min(value), high.max(value)))
}

/// The middle one; of an even number, the mean of the two in the middle.
fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[middle - 1], sorted[middle]) } else { sorted[middle] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(samples: &[f64]) -> Verdict {
        let mut book = Book::default();
        for sample in samples {
            book.note("publish50.ratio", *sample);
        }
        let target = TARGETS.iter().find(|target| target.id == "publish50.ratio").unwrap();
        book.verdict(target).unwrap()
    }

    #[test]
    fn the_median_decides_and_a_spread_across_the_bound_is_told() {
        assert_eq!(verdict(&[0.86, 0.2, 0.9]), Verdict::Held);
        assert_eq!(verdict(&[0.84, 0.2, 0.9]), Verdict::WithinTheSpread);
        assert_eq!(verdict(&[0.84, 0.2, 0.8]), Verdict::Missed);
        assert_eq!(verdict(&[0.84, 0.88]), Verdict::Held, "the mean of two");
    }

    #[test]
    fn one_missed_line_is_enough_and_an_excused_one_is_none() {
        let mut book = Book::default();
        book.note("publish50.rate", 1.0);
        assert!(!book.is_held());
        book.excuse("publish50.rate", "the disk is too slow");
        assert!(book.is_held() && book.to_text().contains("the disk is too slow"));
        book.note("ref.disk_write", 1.0);
        assert!(book.is_held());
        book.note("start.empty", 1e6);
        assert!(!book.is_held());
    }
}
