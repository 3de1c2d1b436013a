//! Two results side by side: what became better or worse, by how much, and what else differs between the runs.

use serde::Serialize;
use serde_json::Value;

use crate::results::{DUPLICATES, Results};

/// A figure that runs are compared by.
struct Figure {
    name: &'static str,
    /// What people read.
    title: &'static str,
    lower_is_better: bool,
    /// Whether it is judged unless others are named. The farthest percentiles and the generator's own cost are noise
    /// between two good runs.
    judged: bool,
}

/// A rate, of which more is better.
const fn rate(name: &'static str, title: &'static str) -> Figure {
    Figure { name, title, lower_is_better: false, judged: true }
}

/// Something of which less is better.
const fn cost(name: &'static str, title: &'static str, judged: bool) -> Figure {
    Figure { name, title, lower_is_better: true, judged }
}

const FIGURES: [Figure; 19] = [
    rate("produce.messages_per_s", "produce, messages/s"),
    rate("produce.mb_per_s", "produce, MB/s"),
    rate("consume.messages_per_s", "consume, messages/s"),
    rate("consume.mb_per_s", "consume, MB/s"),
    cost("ack_us.p50", "ack p50, us", true),
    cost("ack_us.p90", "ack p90, us", true),
    cost("ack_us.p99", "ack p99, us", true),
    cost("ack_us.p999", "ack p99.9, us", true),
    cost("ack_us.p9999", "ack p99.99, us", false),
    cost("ack_us.max", "ack max, us", false),
    cost("ack_us.mean", "ack mean, us", false),
    cost("end_to_end_us.p50", "end to end p50, us", true),
    cost("end_to_end_us.p90", "end to end p90, us", true),
    cost("end_to_end_us.p99", "end to end p99, us", true),
    cost("end_to_end_us.p999", "end to end p99.9, us", true),
    cost("end_to_end_us.p9999", "end to end p99.99, us", false),
    cost("end_to_end_us.max", "end to end max, us", false),
    cost("end_to_end_us.mean", "end to end mean, us", false),
    cost("generator.cpu_us_per_message", "load generator, CPU us a message", false),
];

/// The names of all figures.
pub(crate) fn figure_names() -> impl Iterator<Item = &'static str> {
    FIGURES.iter().map(|figure| figure.name)
}

/// One figure of both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Line {
    figure: &'static str,
    #[serde(skip)]
    title: &'static str,
    before: f64,
    after: f64,
    /// After by before; null if that was 0.
    ratio: Option<f64>,
    /// By how much it is worse; below 0: better. Null if it was 0.
    worse_percent: Option<f64>,
    /// Whether it is worse by more than is allowed.
    failed: bool,
}

/// Something that is not the same in both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Difference {
    what: String,
    before: Value,
    after: Value,
}

/// What comes of comparing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Comparison {
    #[serde(rename = "before")]
    before_name: String,
    #[serde(rename = "after")]
    after_name: String,
    figures: Vec<Line>,
    differences: Vec<Difference>,
    before_verified: bool,
    after_verified: bool,
    passed: bool,
}

impl Comparison {
    /// `fail_above`: by how many percent a figure may be worse; none: all are told, nothing is judged. `judged`: the names
    /// of the figures that it is about; empty: the usual ones.
    pub(crate) fn new(before: &Results, after: &Results, fail_above: Option<f64>, judged: &[String]) -> Self {
        let (before_values, after_values) = (values(before), values(after));
        let line = |figure: &Figure| {
            let (before, after) = (find(&before_values, figure.name)?, find(&after_values, figure.name)?);
            let ratio = (before != 0.0).then(|| after / before);
            let worse_percent = ratio.map(|ratio| (ratio - 1.0) * if figure.lower_is_better { 100.0 } else { -100.0 });
            let is_judged =
                if judged.is_empty() { figure.judged } else { judged.iter().any(|name| name == figure.name) };
            let failed = is_judged && fail_above.zip(worse_percent).is_some_and(|(allowed, worse)| worse > allowed);
            Some(Line { figure: figure.name, title: figure.title, before, after, ratio, worse_percent, failed })
        };
        let figures: Vec<Line> = FIGURES.iter().filter_map(line).collect();
        // A figure that is asked about and not there cannot have passed.
        let is_there = |name: &String| figures.iter().any(|line| line.figure == name);
        let is_complete = fail_above.is_none() || (!figures.is_empty() && judged.iter().all(is_there));
        let after_verified = after.verified && after.errors.keys().all(|kind| kind == DUPLICATES);
        let name = |results: &Results, otherwise: &str| results.name.clone().unwrap_or_else(|| otherwise.to_owned());
        Self {
            before_name: name(before, "before"),
            after_name: name(after, "after"),
            passed: after_verified && is_complete && !figures.iter().any(|line| line.failed),
            differences: differences(&before_values, &after_values),
            figures,
            before_verified: before.verified,
            after_verified,
        }
    }

    pub(crate) fn is_passed(&self) -> bool {
        self.passed
    }

    pub(crate) fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("our own documents have text keys");
        text.push('\n');
        text
    }

    /// The table.
    pub(crate) fn to_text(&self) -> String {
        let mut lines = Vec::new();
        lines.push(format!(
            "{:<34} {:>16} {:>16} {:>9} {:>11}",
            "",
            shortened(&self.before_name),
            shortened(&self.after_name),
            "ratio",
            "change"
        ));
        for line in &self.figures {
            let Line { title, before, after, ratio, worse_percent, failed, .. } = line;
            let digits = usize::from(*before < 100.0 && before.fract() != 0.0) * 2;
            let ratio_text = ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
            let change = ratio.map_or("-".to_owned(), |ratio| format!("{:+.1} %", (ratio - 1.0) * 100.0));
            let judgement = match worse_percent {
                _ if *failed => "  FAILED",
                Some(worse) if *worse >= 1.0 => "  worse",
                Some(worse) if *worse <= -1.0 => "  better",
                _ => "",
            };
            let figures = format!("{before:>16.digits$} {after:>16.digits$} {ratio_text:>9} {change:>11}{judgement}");
            lines.push(format!("{title:<34} {figures}"));
        }
        if self.figures.is_empty() {
            lines.push("the runs have no figure in common".to_owned());
        }
        if !self.differences.is_empty() {
            lines.push("\nThe runs are not alike:".to_owned());
            let told = |difference: &Difference| {
                format!("  {}: {}, then {}", difference.what, plain(&difference.before), plain(&difference.after))
            };
            lines.extend(self.differences.iter().map(told));
        }
        for (name, verified) in [(&self.before_name, self.before_verified), (&self.after_name, self.after_verified)] {
            if !verified {
                lines.push(format!("\nNOT VERIFIED, or messages failed: {name}"));
            }
        }
        lines.join("\n") + "\n"
    }
}

fn values(results: &Results) -> Value {
    serde_json::to_value(results).expect("our own documents have text keys")
}

fn find(results: &Value, name: &str) -> Option<f64> {
    name.split('.').try_fold(results, |value, field| value.get(field))?.as_f64()
}

/// What was asked for, and where: what makes figures differ that nobody has changed.
fn differences(before: &Value, after: &Value) -> Vec<Difference> {
    let mut differences = Vec::new();
    for part in ["settings", "machine"] {
        let empty = serde_json::Map::new();
        let fields = |results: &Value| results[part].as_object().unwrap_or(&empty).clone();
        let (before, after) = (fields(before), fields(after));
        for (field, before) in &before {
            let after = after.get(field).cloned().unwrap_or_default();
            if *before != after {
                let what = if part == "settings" { field.clone() } else { format!("machine, {field}") };
                differences.push(Difference { what, before: before.clone(), after });
            }
        }
    }
    let (before, after) = (&before["brokers"], &after["brokers"]);
    if before != after {
        differences.push(Difference { what: "brokers".to_owned(), before: before.clone(), after: after.clone() });
    }
    differences
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The end of a name that is too long for its column.
fn shortened(name: &str) -> String {
    let beyond = name.chars().count().saturating_sub(16);
    if beyond == 0 { name.to_owned() } else { name.chars().skip(beyond).collect() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::results::tests::example;
    use crate::results::{Flow, Generator};

    /// The second run half as fast, its p99 twice as long.
    fn slower() -> Results {
        let mut results = example();
        results.produce = Some(Flow::new(1_000, 200_000, Duration::from_secs(1)));
        results.ack_us.as_mut().unwrap().p99 *= 2;
        results
    }

    fn failed(comparison: &Comparison) -> Vec<&'static str> {
        comparison.figures.iter().filter(|line| line.failed).map(|line| line.figure).collect()
    }

    #[test]
    fn less_throughput_and_more_latency_are_worse() {
        let comparison = Comparison::new(&example(), &slower(), Some(49.0), &[]);
        assert_eq!(failed(&comparison), ["produce.messages_per_s", "produce.mb_per_s", "ack_us.p99"]);
        assert!(!comparison.is_passed() && comparison.to_text().contains("FAILED"));
        let back = Comparison::new(&slower(), &example(), Some(0.0), &[]);
        assert!(back.is_passed() && back.to_text().contains("better"), "{}", back.to_text());
    }

    #[test]
    fn what_is_allowed_is_allowed_and_nothing_is_judged_unasked() {
        assert!(Comparison::new(&example(), &slower(), None, &[]).is_passed());
        assert_eq!(failed(&Comparison::new(&example(), &slower(), Some(60.0), &[])), ["ack_us.p99"]);
        assert!(Comparison::new(&example(), &slower(), Some(101.0), &[]).is_passed());
        assert!(Comparison::new(&example(), &slower(), Some(5.0), &["ack_us.p50".to_owned()]).is_passed());
    }

    #[test]
    fn a_run_that_was_not_verified_or_has_not_the_figure_does_not_pass() {
        let broken = Results { verified: false, ..example() };
        assert!(!Comparison::new(&example(), &broken, None, &[]).is_passed());
        let silent = Results { ack_us: None, ..example() };
        let judged = ["ack_us.p50".to_owned()];
        assert!(!Comparison::new(&example(), &silent, Some(5.0), &judged).is_passed());
        let nothing = Results { produce: None, consume: None, ack_us: None, end_to_end_us: None, ..example() };
        let nothing = Results { generator: Generator::default(), ..nothing };
        assert!(Comparison::new(&example(), &nothing, None, &[]).is_passed());
    }

    #[test]
    fn what_differs_between_the_runs_is_told() {
        let mut other = example();
        other.settings.acks = Some("none".to_owned());
        other.machine.cores = 64;
        let comparison = Comparison::new(&example(), &other, None, &[]);
        let told: Vec<_> = comparison.differences.iter().map(|difference| difference.what.as_str()).collect();
        assert_eq!(told, ["acks", "machine, cores"]);
        assert!(comparison.to_text().contains("machine, cores: 0, then 64"), "{}", comparison.to_text());
    }
}
