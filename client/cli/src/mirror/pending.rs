//! What is on its way to the target, in the order of each source partition. A message counts as processed once it and all
//! before it are on the target's stable storage; nothing else is ever committed.

use std::collections::{HashMap, VecDeque};

use corelane_client::{DeliveryError, DeliveryFuture, GroupHandle, GroupMessage};

/// A message, or the last one of a set, whose acknowledgement is waited for.
pub(super) struct OnItsWay {
    pub(super) message: GroupMessage,
    /// Where what was published with it begins in the source.
    pub(super) first: u64,
    /// None: nothing had to be published.
    delivery: Option<DeliveryFuture>,
}

/// The first in its partition that failed.
pub(super) struct Failed<'a> {
    pub(super) on_its_way: &'a OnItsWay,
    pub(super) error: DeliveryError,
    lane: usize,
}

/// See the head of this file.
pub(super) struct Pending {
    handle: GroupHandle,
    lanes: Vec<VecDeque<OnItsWay>>,
    lane_of: HashMap<(String, u32), usize>,
    /// The lane of the message before.
    last: Option<usize>,
    len: usize,
}

impl Pending {
    pub(super) fn new(handle: GroupHandle) -> Self {
        Self { handle, lanes: Vec::new(), lane_of: HashMap::new(), last: None, len: 0 }
    }

    /// How many are on their way.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds what was published just now; `first`: where it begins in the source.
    pub(super) fn push(&mut self, message: GroupMessage, first: u64, delivery: Option<DeliveryFuture>) {
        let lane = self.lane(&message);
        let lane = &mut self.lanes[lane];
        let on_its_way = OnItsWay { message, first, delivery };
        match lane.back_mut() {
            // What lies before it has nothing to wait for either, so it need not be kept.
            Some(before) if before.delivery.is_none() && on_its_way.delivery.is_none() => *before = on_its_way,
            _ => {
                lane.push_back(on_its_way);
                self.len += 1;
            }
        }
    }

    fn lane(&mut self, message: &GroupMessage) -> usize {
        let is_its = |lane: &usize| {
            let before = self.lanes[*lane].back();
            before.is_some_and(|before| {
                before.message.partition() == message.partition() && before.message.topic() == message.topic()
            })
        };
        if let Some(lane) = self.last.filter(is_its) {
            return lane;
        }
        let lane = *self.lane_of.entry((message.topic().to_owned(), message.partition())).or_insert_with(|| {
            self.lanes.push(VecDeque::new());
            self.lanes.len() - 1
        });
        self.last = Some(lane);
        lane
    }

    /// Marks what has arrived. Stops at the first failure, which stays in its place.
    pub(super) fn settle(&mut self) -> Result<(), Failed<'_>> {
        let mut failed = None;
        for (lane, on_their_way) in self.lanes.iter_mut().enumerate() {
            let mut arrived = None;
            while let Some(first) = on_their_way.front() {
                match first.delivery.as_ref().map_or(Some(None), |delivery| delivery.try_result().map(Result::err)) {
                    Some(None) => {
                        self.len -= 1;
                        arrived = on_their_way.pop_front();
                    }
                    Some(Some(error)) => {
                        failed = Some((lane, error));
                        break;
                    }
                    None => break,
                }
            }
            if let Some(last) = arrived {
                self.handle.mark(&last.message);
            }
        }
        match failed {
            None => Ok(()),
            Some((lane, error)) => {
                let on_its_way = self.lanes[lane].front().expect("what failed stays in its place");
                Err(Failed { on_its_way, error, lane })
            }
        }
    }

    /// What had failed in this lane has arrived all the same.
    pub(super) fn pass(&mut self, lane: usize) {
        if let Some(arrived) = self.lanes[lane].pop_front() {
            self.len -= 1;
            self.handle.mark(&arrived.message);
        }
    }
}

impl Failed<'_> {
    /// For [`Pending::pass`].
    pub(super) fn lane(&self) -> usize {
        self.lane
    }
}
