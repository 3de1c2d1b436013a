//! What an operator is told of the other brokers: in the log when one of them goes or comes, on the page of readiness while one
//! that holds partitions does not run. Pure but for the log.

use super::Control;
use crate::registry::store::Store;
use crate::registry::view::View;
use crate::telemetry::snapshot::BrokerFigures;

/// What has become of another broker between two views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    LeaseEnded,
    Stopped,
    RunsFirst,
    RunsAgain,
}

/// Of every broker that went or came but this one.
fn passages(before: &View, now: &View, this: u32) -> Vec<(u32, Passage)> {
    let gone = before.alive.keys().filter(|id| !now.alive.contains_key(id));
    let ended = |id| if now.gone.get(id) == Some(&true) { Passage::Stopped } else { Passage::LeaseEnded };
    let gone = gone.map(|id| (*id, ended(id)));
    let come = now.alive.keys().filter(|id| !before.alive.contains_key(id)).map(|id| {
        // Its record may be seen after its entry among those that run.
        let is_first = !before.gone.contains_key(id) && now.brokers.get(id).is_none_or(|broker| broker.starts <= 1);
        (*id, if is_first { Passage::RunsFirst } else { Passage::RunsAgain })
    });
    gone.chain(come).filter(|(id, _)| *id != this).collect()
}

/// Of every other broker that has partitions and does not run.
pub(super) fn missing(brokers: &[BrokerFigures], this: u32) -> Vec<String> {
    let missing = brokers.iter().filter(|broker| broker.id != this && !broker.is_running && broker.partitions > 0);
    let told = missing.map(|BrokerFigures { id, partitions, .. }| {
        let s = if *partitions == 1 { "" } else { "s" };
        format!(
            "broker {id}, which holds {partitions} partition{s}, is not known to run: start it; if it will never come back: \
             corelane broker forget {id}"
        )
    });
    told.collect()
}

impl<S: Store> Control<S> {
    /// Names in the log what has changed since the view before. What was not seen by this start, but only remembered, is no
    /// news.
    pub(super) fn note_passages(&self, now: &View) {
        let before = self.view.borrow();
        if before.revision == 0 {
            return;
        }
        for (broker_id, passage) in passages(&before, now, self.broker_id) {
            match passage {
                Passage::LeaseEnded => {
                    tracing::warn!(broker_id, "broker {broker_id} is not known to run any more: its lease has ended");
                }
                Passage::Stopped => tracing::info!(broker_id, "broker {broker_id} has stopped"),
                Passage::RunsFirst => tracing::info!(broker_id, "broker {broker_id} runs"),
                Passage::RunsAgain => tracing::info!(broker_id, "broker {broker_id} runs again"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::keys::{Key, Keys};
    use crate::registry::records::{AliveRecord, BrokerRecord, Record as _};
    use crate::registry::store::{Change, Entry};

    fn put(view: &mut View, key: &Key, value: Vec<u8>) {
        let keys = Keys::new("c");
        let entry = Entry { key: keys.key(key), value, create_revision: 1, mod_revision: 1, lease: None };
        view.apply(&keys, Change::Put(entry));
    }

    fn run(view: &mut View, id: u32, starts: u64, leaving: bool) {
        let (uuid, instance, version) = ("u".to_owned(), "i".to_owned(), "v".to_owned());
        let record = BrokerRecord { uuid, starts, instance, listeners: Vec::new(), shards: 1, version };
        put(view, &Key::Broker(id), record.to_bytes());
        let (uuid, instance) = ("u".to_owned(), "i".to_owned());
        let alive = AliveRecord { instance, uuid, leaving, ..AliveRecord::default() };
        put(view, &Key::Alive(id), alive.to_bytes());
    }

    fn end(view: &mut View, id: u32) {
        let keys = Keys::new("c");
        let key = keys.key(&Key::Alive(id));
        view.apply(&keys, Change::Deleted { key, revision: 2 });
    }

    #[test]
    fn a_broker_that_goes_or_comes_is_told_once_and_with_its_reason() {
        let mut before = View::default();
        for id in [1, 2, 3] {
            run(&mut before, id, 4, false);
        }
        assert_eq!(passages(&before, &before, 1), []);
        let mut now = before.clone();
        end(&mut now, 2);
        run(&mut now, 3, 4, true);
        end(&mut now, 3);
        run(&mut now, 5, 1, false);
        let told = [(2, Passage::LeaseEnded), (3, Passage::Stopped), (5, Passage::RunsFirst)];
        assert_eq!(passages(&before, &now, 1), told);
        let mut later = now.clone();
        run(&mut later, 3, 5, false);
        assert_eq!(passages(&now, &later, 1), [(3, Passage::RunsAgain)]);
        let mut first = now.clone();
        end(&mut first, 5);
        let mut again = first.clone();
        run(&mut again, 5, 1, false);
        assert_eq!(passages(&first, &again, 1), [(5, Passage::RunsAgain)], "before its record tells of another start");
        end(&mut later, 3);
        assert_eq!(passages(&before, &later, 3), [(2, Passage::LeaseEnded), (5, Passage::RunsFirst)], "not of itself");
        run(&mut now, 3, 5, false);
        end(&mut now, 3);
        assert_eq!(now.gone.get(&3), Some(&false), "it has come back since, and was lost then");
    }

    #[test]
    fn only_brokers_that_hold_partitions_are_missed() {
        let broker =
            |id, partitions, is_running| BrokerFigures { id, partitions, is_running, ..BrokerFigures::default() };
        let brokers = [broker(1, 3, false), broker(2, 0, false), broker(3, 5, true), broker(4, 2, false)];
        let told = missing(&brokers, 1);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("broker 4, which holds 2 partitions,") && told[0].ends_with("forget 4"),
            "{told:?}"
        );
    }
}
