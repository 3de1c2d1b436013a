//! What operators see and use: pages, log lines, what the service manager is told, what `deploy/` holds.

mod deployed;
mod pages;
mod running;

use std::collections::BTreeMap;

use corelane_testkit::{Broker, HttpAnswer, http_get};

use crate::support::PATIENCE;

fn get(broker: &Broker, path: &str) -> HttpAnswer {
    http_get(broker.http_addr(), path, PATIENCE).expect("a broker that runs has pages")
}

/// The lines of a metrics page: each line's name and labels as they stand there, with the value.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// What each family is: its kind by its name.
    kinds: BTreeMap<String, String>,
    lines: BTreeMap<String, f64>,
}

impl Metrics {
    /// Of a broker, with this query; panics at a line that is no metric, and at one whose family was not described before.
    #[track_caller]
    pub(crate) fn of(broker: &Broker, query: &str) -> Self {
        let answer = get(broker, &format!("/metrics{query}"));
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
        let (mut kinds, mut helps, mut lines) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for line in answer.body.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, text) = help.split_once(' ').expect("a name and a text");
                assert!(helps.insert(name.to_owned(), text.to_owned()).is_none(), "{name} is described twice");
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a name and a kind");
                kinds.insert(name.to_owned(), kind.to_owned());
            } else {
                let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no metric: {line}"));
                let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
                let family = name.split('{').next().expect("split gives one part at least");
                let is_histogram = |suffix| {
                    let base = family.strip_suffix(suffix);
                    base.is_some_and(|base| kinds.get(base).is_some_and(|kind| kind == "histogram"))
                };
                let is_part = ["_bucket", "_sum", "_count"].into_iter().any(is_histogram);
                assert!(is_part || kinds.contains_key(family) && helps.contains_key(family), "{line}");
                assert!(lines.insert(name.to_owned(), value).is_none(), "{name} is there twice");
            }
        }
        Self { kinds, lines }
    }

    /// The lines of a metric that have all of these labels.
    fn with<'m>(&'m self, name: &'m str, labels: &'m [&str]) -> impl Iterator<Item = (&'m str, f64)> {
        let lines = self.lines.iter().map(|(line, value)| (line.as_str(), *value));
        lines.filter(move |(line, _)| {
            let (family, rest) = line.split_once('{').unwrap_or((line, ""));
            family == name && labels.iter().all(|label| rest.contains(label))
        })
    }

    /// Their sum; panics where there are none.
    #[track_caller]
    fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        assert!(self.with(name, labels).next().is_some(), "there is no {name} with {labels:?}");
        self.with(name, labels).map(|(_, value)| value).sum()
    }

    /// Their sum where it is a whole number.
    #[track_caller]
    pub(crate) fn count(&self, name: &str, labels: &[&str]) -> u64 {
        self.sum(name, labels).round() as u64
    }
}
