//! Where a message begins: the walk from the nearest known boundary, and the answers to FindMessage. Nothing is ever
//! guessed from bytes that look like a message, since values may contain messages.

use std::ops::ControlFlow;
use std::rc::Rc;

use corelane_proto::ids::Position;

use super::{Inner, Partition, count};
use crate::env::Env;
use crate::error::ReadError;
use crate::index::{Index, Run};
use crate::scan::{Found, LengthSearch, Scanned, Scanner};
use crate::segment::Facts;

/// A place that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The start.
    Earliest,
    /// The visible end.
    Latest,
    /// The message that contains this position.
    Containing(Position),
    /// The first message with a timestamp of so many milliseconds or later; the visible end if there is none.
    Time(i64),
    /// The place from which so many messages follow up to the visible end; the start if there are fewer.
    LastMessages(u64),
    /// The next place to go on after a bad message at this position: the position itself if the message there is good, so
    /// that whoever met it damaged reads it again.
    GoodAfter(Position),
}

impl<E: Env> Partition<E> {
    /// Where the message begins that contains `at`. Between the visible end and the end that is not known yet: the visible
    /// end then.
    pub async fn seek(&self, at: Position) -> Result<Position, ReadError> {
        self.inner.containing(at.0).await.map(Position)
    }

    /// Where the message begins that is asked for.
    pub async fn find(&self, target: Target) -> Result<Position, ReadError> {
        let inner = &self.inner;
        loop {
            let bounds = self.bounds();
            let found = match target {
                Target::Earliest => Ok(bounds.start.0),
                Target::Latest => Ok(bounds.visible_end.0),
                Target::Containing(at) => return inner.containing(at.0).await.map(Position),
                Target::GoodAfter(at) => return inner.good_after(at.0).await.map(Position),
                Target::Time(time_ms) => inner.with_time(time_ms).await,
                Target::LastMessages(messages) => inner.last_messages(messages).await,
            };
            match found {
                // Retention took the place during the search: the start has moved, and the search begins anew.
                Err(ReadError::OutOfRange { .. }) => {}
                found => return found.map(Position),
            }
        }
    }
}

/// What is known around a position.
struct Around {
    /// The nearest known boundary at or below it.
    from: u64,
    /// The next known one above it.
    next: u64,
}

impl<E: Env> Inner<E> {
    async fn containing(&self, at: u64) -> Result<u64, ReadError> {
        let visible_end = {
            let state = self.state.borrow();
            state.check_range(at)?;
            state.durable
        };
        if at >= visible_end {
            return Ok(visible_end);
        }
        let around = self.around(at).await?;
        // Where a bad message was met: what is found behind it counts only if the walk reaches the next boundary.
        let mut bad = None;
        let mut found = None;
        let reached = self
            .walk(around.from, around.next, |message| {
                if !message.is_good {
                    bad.get_or_insert(message.at);
                }
                if message.end() > at {
                    found.get_or_insert(message.at);
                }
                if found.is_some() && bad.is_none() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .await?;
        let Some(bad) = bad else { return Ok(found.unwrap_or(reached)) };
        let leads_on = self.leads_on(reached, around.next).await?;
        Ok(if leads_on { found.unwrap_or(reached) } else { bad })
    }

    async fn good_after(&self, at: u64) -> Result<u64, ReadError> {
        let visible_end = {
            let state = self.state.borrow();
            state.check_range(at)?;
            state.durable
        };
        if at >= visible_end {
            return Ok(visible_end);
        }
        let Around { from, next } = self.around(at).await?;
        // A reader may have got damaged what is good here, or may ask for anything: neither is damage of the log.
        let mut good = None;
        self.walk(from, next, |message| {
            if message.is_good && message.end() > at {
                good = Some(*message);
            }
            if message.is_good && good.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .await?;
        if let Some(good) = good.filter(|good| !good.is_newer()) {
            return Ok(if good.at == at { at } else { good.end() });
        }
        let mut met = None;
        let reached = self
            .walk(at, next, |message| {
                met.get_or_insert(*message);
                ControlFlow::Continue(())
            })
            .await?;
        let leads_on = self.leads_on(reached, next).await?;
        let good = met.filter(|_| leads_on).map_or(next, |message| message.end());
        count(&self.counters.bad_messages, 1);
        if let Some(newer) = met.filter(Scanned::is_newer) {
            let version = newer.header.version;
            tracing::error!(
                partition = %self.label,
                "the message at {at} is of format version {version}: start a newer broker; behind it the log goes on at {good}"
            );
        } else {
            tracing::warn!(partition = %self.label, "a reader met a bad message at {at}; it goes on at {good}");
        }
        Ok(good)
    }

    async fn with_time(&self, time_ms: i64) -> Result<u64, ReadError> {
        // What becomes visible during the search does not count: it must not be jumped over.
        let (mut from, visible_end) = {
            let state = self.state.borrow();
            (state.start(), state.durable)
        };
        while from < visible_end {
            let (base, end) = {
                let state = self.state.borrow();
                from = from.max(state.start());
                let index = state.segment_index(from);
                (state.segments[index].base, state.segment_end(index).min(visible_end))
            };
            if self.facts_of(base).await?.is_some_and(|facts| facts.max_timestamp_ms < time_ms) {
                from = end;
                continue;
            }
            let stretch = self.index_of(base).await?.and_then(|index| index.stretch_with_time(time_ms));
            if let Some(start) = stretch.map(|offset| base + offset).filter(|start| *start < end) {
                let mut found = None;
                self.walk(start, end, |message| {
                    if message.is_good && message.header.timestamp_ms >= time_ms {
                        found = Some(message.at);
                        return ControlFlow::Break(());
                    }
                    ControlFlow::Continue(())
                })
                .await?;
                if let Some(found) = found {
                    return Ok(found);
                }
            }
            from = end;
        }
        Ok(visible_end)
    }

    async fn last_messages(&self, messages: u64) -> Result<u64, ReadError> {
        if messages == 0 {
            return Ok(self.state.borrow().durable);
        }
        let mut wanted = messages;
        let mut before = u64::MAX;
        let mut hidden = None;
        loop {
            // The newest segment that lies below the ones looked at.
            let base = {
                let state = self.state.borrow();
                let index = state.segments.partition_point(|segment| segment.base < before);
                index.checked_sub(1).map(|index| state.segments[index].base)
            };
            let Some(base) = base else { return Ok(self.state.borrow().start()) };
            if hidden == Some(0)
                && let Some(facts) = self.facts_of(base).await?
                && facts.messages < wanted
            {
                wanted -= facts.messages;
                before = base;
                continue;
            }
            if self.index_of(base).await?.is_none() {
                return Ok(self.state.borrow().start());
            }
            let (index, visible_end) = {
                let state = self.state.borrow();
                let Ok(at) = state.segments.binary_search_by_key(&base, |segment| segment.base) else { continue };
                let Some(index) = state.segments[at].index.clone() else { continue };
                if hidden.is_none() && at + 1 != state.segments.len() {
                    // A roll came between: this is not the newest one any more.
                    continue;
                }
                // Counted at the same moment as the newest segment's messages.
                hidden.get_or_insert(state.ends.messages());
                (index, state.durable)
            };
            before = base;
            let not_visible = hidden.unwrap_or(0);
            let visible = index.messages.saturating_sub(not_visible);
            hidden = Some(not_visible.saturating_sub(index.messages));
            if visible < wanted {
                wanted -= visible;
                continue;
            }
            let skip = visible - wanted;
            let Some(stretch) = index.stretch_behind_messages(skip) else { return Ok(base) };
            let mut passed = stretch.messages_before;
            let mut found = base + stretch.offset;
            self.walk(found, (base + index.end).min(visible_end), |message| {
                if message.is_good && passed + message.messages > skip {
                    return ControlFlow::Break(());
                }
                passed += if message.is_good { message.messages } else { 0 };
                found = message.end();
                if passed >= skip { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .await?;
            return Ok(found);
        }
    }

    /// The known boundaries around a visible position.
    async fn around(&self, at: u64) -> Result<Around, ReadError> {
        let (base, end) = {
            let state = self.state.borrow();
            state.check_range(at)?;
            let index = state.segment_index(at);
            (state.segments[index].base, state.segment_end(index).min(state.durable))
        };
        let index = self.index_of(base).await?;
        let offset = at - base;
        let from = index.as_ref().and_then(|index| index.boundary_at_or_below(offset)).unwrap_or(0);
        let next = index.as_ref().and_then(|index| index.boundary_above(offset)).map_or(end, |next| base + next);
        Ok(Around { from: base + from, next: next.min(end) })
    }

    /// Walks from message to message, from `from` (a boundary) up to `to`, and says how far it came: to the end of a
    /// message, or to a place where there is none. A walk may go over bad messages, by the length that they claim, unless
    /// their CRC holds for another one: then what was hurt is the length.
    async fn walk(
        &self,
        from: u64,
        to: u64,
        mut visit: impl FnMut(&Scanned) -> ControlFlow<()>,
    ) -> Result<u64, ReadError> {
        let mut scanner = Scanner::new(from, to);
        // However many are bad, a walk looks at twice its bytes at most.
        let mut doubts = to.saturating_sub(from);
        while scanner.next_byte() < to {
            let piece = self.bytes_at(scanner.next_byte(), to).await?;
            let mut bytes = &piece[..];
            loop {
                match scanner.feed(&mut bytes) {
                    Found::More => break,
                    Found::NoMessage { at } => return Ok(at),
                    Found::Message(message) => {
                        if !message.is_good && self.has_another_length(&message, to, &mut doubts).await? {
                            return Ok(message.at);
                        }
                        if visit(&message).is_break() {
                            return Ok(message.end());
                        }
                    }
                }
            }
        }
        Ok(scanner.at())
    }

    /// Whether the CRC of a bad message holds for another length than it claims. Takes the bytes looked at from `doubts`.
    async fn has_another_length(&self, bad: &Scanned, to: u64, doubts: &mut u64) -> Result<bool, ReadError> {
        let mut search = LengthSearch::new(bad, to, *doubts);
        while let Some(at) = search.next_byte() {
            let piece = self.bytes_at(at, to).await?;
            *doubts = doubts.saturating_sub(piece.len() as u64);
            if search.feed(&piece) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a walk that came to `reached` has led on to the boundary `next`: it is there, or there are only zeros between,
    /// as behind the last message of a segment that was closed for its damage.
    async fn leads_on(&self, reached: u64, next: u64) -> Result<bool, ReadError> {
        let mut at = reached;
        while at < next {
            let piece = self.bytes_at(at, next).await?;
            if piece.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += piece.len() as u64;
        }
        Ok(true)
    }

    /// What is known of the inside of the segment at `base`, all of it: from memory, from its summary, or by a scan.
    /// `None`: it was deleted meanwhile.
    pub(super) async fn index_of(&self, base: u64) -> Result<Option<Rc<Index>>, ReadError> {
        loop {
            let (known, summary, end) = {
                let state = self.state.borrow();
                let Ok(at) = state.segments.binary_search_by_key(&base, |segment| segment.base) else {
                    return Ok(None);
                };
                let segment = &state.segments[at];
                (segment.index.clone(), self.dir.join(segment.summary_name()), state.segment_end(at))
            };
            let missing_to = match known {
                Some(index) if index.is_complete() => return Ok(Some(index)),
                Some(index) => index.known_from,
                None => end - base,
            };
            let summary = self.read_summary(&summary, base).await.map(|summary| summary.index);
            let begun = summary.and_then(|index| index.truncated(missing_to));
            let was_whole = begun.as_ref().is_some_and(|index| index.end == missing_to);
            let begun = begun.unwrap_or_else(|| Index::new(0, self.shard.tuning().stretch_bytes));
            let index = self.scan_index(base, begun, missing_to).await?;

            let mut state = self.state.borrow_mut();
            let Ok(at) = state.segments.binary_search_by_key(&base, |segment| segment.base) else { return Ok(None) };
            let (is_closed, end) = (at < state.closed_segments(), state.segment_end(at));
            let segment = &mut state.segments[at];
            let whole = match &segment.index {
                Some(known) if known.is_complete() => return Ok(Some(known.clone())),
                Some(known) => Rc::new(index.joined(known)),
                None if base + index.end == end => Rc::new(index),
                // Somebody else was faster, and what he found out is not in memory any more.
                None => continue,
            };
            segment.index = Some(whole.clone());
            if is_closed {
                segment.facts = Some(Facts::of(&whole));
                segment.needs_summary |= !was_whole;
                state.chores.untidy = state.count_untidy();
                state.forget_summaries(base);
            }
            drop(state);
            self.driver.notify();
            return Ok(Some(whole));
        }
    }

    /// Goes on building an index by a scan, up to `to`, in bytes from the segment's base. Bad messages are walked over by
    /// the length they claim if the walk then reaches `to`; else nothing is known behind the first of them.
    async fn scan_index(&self, base: u64, mut index: Index, to: u64) -> Result<Index, ReadError> {
        let mut before_damage = None;
        let reached = self
            .walk(base + index.end, base + to, |message| {
                if !message.is_good {
                    before_damage.get_or_insert_with(|| index.clone());
                }
                index.append(Run {
                    bytes: u64::from(message.header.length),
                    messages: if message.is_good { message.messages } else { 0 },
                    max_timestamp_ms: if message.is_good { message.header.timestamp_ms } else { i64::MIN },
                });
                ControlFlow::Continue(())
            })
            .await?;
        if !self.leads_on(reached, base + to).await? {
            index = before_damage.unwrap_or(index);
        }
        index.append_damage(to - index.end);
        Ok(index)
    }

    /// The number of messages and the largest timestamp of the segment at `base`.
    async fn facts_of(&self, base: u64) -> Result<Option<Facts>, ReadError> {
        let known = {
            let state = self.state.borrow();
            let at = state.segments.binary_search_by_key(&base, |segment| segment.base);
            at.ok().and_then(|at| state.segments[at].facts)
        };
        if known.is_some() {
            return Ok(known);
        }
        let index = self.index_of(base).await?;
        Ok(index.map(|index| Facts::of(&index)))
    }
}
