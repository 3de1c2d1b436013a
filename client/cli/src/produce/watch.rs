//! What `produce` and `mirror` say while they run: that something keeps messages from being published, that some were given
//! up, and that it is over. Pure: it is shown the producer once a second.

use std::time::{Duration, Instant};

/// What lasts is told again after so long.
const SILENCE: Duration = Duration::from_secs(10);

/// What there is to see of a producer at a moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sight {
    /// What is in the way.
    pub(crate) obstacle: Option<String>,
    /// Messages that failed so far, and why the first of them did.
    pub(crate) failed: u64,
    pub(crate) first_failure: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Watch {
    before: Sight,
    obstacle_told: Option<Instant>,
    failures_told: Option<Instant>,
    failed_told: u64,
}

impl Watch {
    /// What is to be said. An obstacle counts when it was seen twice in a row: most pass in less than a second.
    pub(crate) fn look(&mut self, sight: Sight, now: Instant) -> Vec<String> {
        let mut words = Vec::new();
        let is_due = |told: Option<Instant>| told.is_none_or(|told| now.duration_since(told) >= SILENCE);
        match (&sight.obstacle, &self.before.obstacle) {
            (Some(obstacle), Some(_)) if is_due(self.obstacle_told) => {
                words.push(format!("{obstacle}; what is to go there waits"));
                self.obstacle_told = Some(now);
            }
            (None, None) if self.obstacle_told.take().is_some() => words.push("what waited is published".to_owned()),
            _ => {}
        }
        if sight.failed > self.failed_told && is_due(self.failures_told) {
            let cause = sight.first_failure.as_deref().unwrap_or("no acknowledgement came in time");
            let count = if sight.failed == 1 { "1 message was" } else { &format!("{} messages were", sight.failed) };
            words.push(format!("{count} not published so far; the first failure: {cause}"));
            (self.failures_told, self.failed_told) = (Some(now), sight.failed);
        }
        self.before = sight;
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn obstacle(what: &str) -> Sight {
        Sight { obstacle: Some(what.to_owned()), ..Sight::default() }
    }

    #[test]
    fn an_obstacle_that_lasts_is_told_again_now_and_then_and_its_end_once() {
        let mut watch = Watch::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(watch.look(obstacle("broker 2"), at(0)).is_empty(), "it may pass");
        assert_eq!(watch.look(obstacle("broker 2"), at(1)), ["broker 2; what is to go there waits"]);
        assert!(watch.look(obstacle("broker 2"), at(2)).is_empty());
        assert_eq!(watch.look(obstacle("broker 2"), at(11)).len(), 1);
        assert!(watch.look(Sight::default(), at(12)).is_empty(), "it may come back at once");
        assert_eq!(watch.look(Sight::default(), at(13)), ["what waited is published"]);
        assert!(watch.look(Sight::default(), at(14)).is_empty());
    }

    #[test]
    fn failures_are_told_at_once_and_then_by_their_number() {
        let mut watch = Watch::default();
        let start = Instant::now();
        let failed = |failed| Sight { failed, first_failure: Some("why".to_owned()), ..Sight::default() };
        assert_eq!(watch.look(failed(1), start), ["1 message was not published so far; the first failure: why"]);
        assert!(watch.look(failed(50), start + Duration::from_secs(1)).is_empty());
        let words = watch.look(failed(90), start + SILENCE);
        assert_eq!(words, ["90 messages were not published so far; the first failure: why"]);
        assert!(watch.look(failed(90), start + 3 * SILENCE).is_empty(), "nothing new");
    }
}
