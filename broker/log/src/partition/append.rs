//! Publishing: room for a set while it arrives, the check, the moment in which it becomes part of the log. A set is
//! appended whole or not at all; nothing of it reaches the disk before it was checked whole.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;

use corelane_proto::ids::Position;
use corelane_proto::set::{Reserved, SetInfo, SetLimits, check_set};
use futures_util::future::select;

use super::state::Room;
use super::{Inner, Partition, count};
use crate::env::{BLOCK_BYTES, Chunk, Env, File};
use crate::error::AppendError;
use crate::landing::{Landing, Place};
use crate::limits;
use crate::segment::Now;
use crate::shard::{EnvChunk, Purpose};
use crate::tail::partial_bytes;

/// A set that is part of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Its first message's id.
    pub first: Position,
    /// The id that the next set's first message gets.
    pub next: Position,
    /// The durable end at that moment.
    pub durable_end: Position,
}

/// What stands between a set and its place.
enum Step<E: Env> {
    Done(Place<E>),
    Appended(Appended),
    /// The driver does it; `room` tells.
    Wait,
    /// The tail goes on in a fresh chunk.
    Extend,
    /// Somebody receives in the tail.
    MoveOut(Rc<RefCell<Place<E>>>),
    /// Bytes of its own.
    Own,
}

impl<E: Env> Partition<E> {
    /// Room for a set of `set_bytes` bytes. Waits for memory, for the write window and for space on the disk: that is the
    /// back-pressure. Refuses at once when there is no space, or when the partition takes no appends.
    pub async fn landing(&self, set_bytes: usize) -> Result<Landing<E>, AppendError> {
        let inner = &self.inner;
        loop {
            let room = inner.room.changed();
            match inner.step_to_land(set_bytes)? {
                Step::Wait => {
                    inner.driver.notify();
                    room.await;
                }
                Step::Extend => inner.extend_tail(set_bytes).await?,
                Step::MoveOut(holder) => inner.move_out(&holder).await,
                Step::Own => {
                    let chunk =
                        inner.shard.allocate(set_bytes.max(1).next_multiple_of(BLOCK_BYTES), Purpose::Arrival).await;
                    return Ok(inner.landing_at(Place { chunk, at: 0, received: 0, bytes: set_bytes, in_tail: false }));
                }
                Step::Done(place) => return Ok(inner.landing_at(place)),
                Step::Appended(_) => unreachable!("a landing is not appended before it is filled"),
            }
        }
    }

    /// Appends the set that has arrived in `landing`: checks it, every CRC included, and makes it part of the log, or
    /// leaves the log as it was. With `expected`, only if that is the end. Sets of several callers are appended in the
    /// order in which these calls complete.
    pub async fn append(&self, landing: Landing<E>, expected: Option<Position>) -> Result<Appended, AppendError> {
        assert!(Rc::ptr_eq(&self.inner, &landing.partition), "a landing of this partition was expected");
        assert!(landing.remaining() == 0, "a whole set was expected, {} bytes are missing", landing.remaining());
        let inner = &self.inner;
        let info = inner.check(&landing)?;
        loop {
            let room = inner.room.changed();
            match inner.step_to_append(&landing.place, &info, expected)? {
                Step::Wait => {
                    inner.driver.notify();
                    room.await;
                }
                Step::Extend => inner.extend_tail(landing.bytes()).await?,
                Step::MoveOut(holder) => inner.move_out(&holder).await,
                Step::Appended(appended) => {
                    inner.driver.notify();
                    inner.room.notify();
                    return Ok(appended);
                }
                Step::Done(_) | Step::Own => unreachable!("a set that has arrived needs no room to arrive"),
            }
        }
    }
}

impl<E: Env> Inner<E> {
    fn landing_at(self: &Rc<Self>, place: Place<E>) -> Landing<E> {
        let in_place = place.in_tail;
        let place = Rc::new(RefCell::new(place));
        if in_place {
            self.state.borrow_mut().holder = Some(place.clone());
        }
        Landing { partition: self.clone(), place }
    }

    /// The next step towards room for a set. `Done` must become a landing before anything else happens.
    fn step_to_land(&self, bytes: usize) -> Result<Step<E>, AppendError> {
        let mut state = self.state.borrow_mut();
        match state.room_for(bytes, || self.shard.env().monotonic())? {
            Room::Ready => {}
            Room::Wait => return Ok(Step::Wait),
            Room::Roll => return Ok(Self::roll_or_move_out(&mut state)),
        }
        if !state.window_has_room(bytes, self.window) {
            return Ok(Step::Wait);
        }
        if state.holder.is_some() {
            return Ok(Step::Own);
        }
        let (end, base) = (state.end, state.active().base);
        Ok(match state.tail.room(end, base, bytes) {
            Some((chunk, at)) => Step::Done(Place { chunk, at, received: 0, bytes, in_tail: true }),
            None => Step::Extend,
        })
    }

    /// The next step towards the moment in which a set that has arrived is part of the log.
    fn step_to_append(
        &self,
        place: &Rc<RefCell<Place<E>>>,
        info: &SetInfo,
        expected: Option<Position>,
    ) -> Result<Step<E>, AppendError> {
        let now = Now::read(self.shard.env());
        let mut state = self.state.borrow_mut();
        if let Some(reason) = &state.refuses {
            return Err(AppendError::Closed(reason.clone()));
        }
        if expected.is_some_and(|expected| expected.0 != state.end) {
            return Err(AppendError::UnexpectedEnd { end: Position(state.end) });
        }
        let place = place.borrow();
        if place.in_tail {
            // Its room was found when it began, and the end has not moved since, or it would have been moved out.
            place.chunk.fill_to(place.at + place.bytes);
            state.holder = None;
        } else {
            match state.room_for(place.bytes, || now.monotonic)? {
                Room::Ready => {}
                Room::Wait => return Ok(Step::Wait),
                Room::Roll => return Ok(Self::roll_or_move_out(&mut state)),
            }
            if let Some(holder) = &state.holder {
                return Ok(Step::MoveOut(holder.clone()));
            }
            let (end, base) = (state.end, state.active().base);
            let Some((chunk, at)) = state.tail.room(end, base, place.bytes) else { return Ok(Step::Extend) };
            place.with_received(|set| chunk.with_spare(at..at + set.len(), |spare| spare.copy_from_slice(set)));
            chunk.fill_to(at + place.bytes);
        }
        let first = state.commit(place.bytes, info, now);
        if !state.known_dirty {
            state.known_dirty = true;
            self.shard.is_dirty(self.this.clone());
        }
        count(&self.counters.sets, 1);
        count(&self.counters.messages, u64::from(info.messages));
        count(&self.counters.bytes, place.bytes as u64);
        let (next, durable_end) = (Position(state.end), Position(state.durable));
        Ok(Step::Appended(Appended { first: Position(first), next, durable_end }))
    }

    fn roll_or_move_out(state: &mut super::state::State<E>) -> Step<E> {
        if let Some(holder) = &state.holder {
            return Step::MoveOut(holder.clone());
        }
        state.begin_roll();
        Step::Wait
    }

    /// Checks the set in place: one pass, every CRC.
    fn check(&self, landing: &Landing<E>) -> Result<SetInfo, AppendError> {
        let limits = {
            let state = self.state.borrow();
            SetLimits {
                message_bytes_max: state.config.message_bytes_max,
                set_bytes_max: state.config.set_bytes_max,
                uncompressed_bytes_max: limits::UNCOMPRESSED_BYTES_MAX,
                reserved: Reserved::Refuse,
            }
        };
        Ok(landing.place.borrow().with_received(|set| check_set(set, &limits))?)
    }

    /// Moves a receiver out of the tail, unless it leaves by itself meanwhile.
    async fn move_out(&self, holder: &Rc<RefCell<Place<E>>>) {
        let room = pin!(self.room.changed());
        let bytes = holder.borrow().bytes.max(1).next_multiple_of(BLOCK_BYTES);
        let memory = pin!(self.shard.allocate(bytes, Purpose::Arrival));
        let futures_util::future::Either::Right((chunk, _)) = select(room, memory).await else { return };
        let mut state = self.state.borrow_mut();
        if state.holder.as_ref().is_some_and(|current| Rc::ptr_eq(current, holder)) {
            state.holder = None;
            holder.borrow_mut().move_out(chunk);
            count(&self.counters.moved_out, 1);
        }
    }

    /// Lets the tail go on in a fresh chunk in which `bytes` bytes fit. Its first block begins with the bytes that the
    /// last block has already: from memory, or read back when the tail was given up.
    async fn extend_tail(&self, bytes: usize) -> Result<(), AppendError> {
        let (end, base) = {
            let state = self.state.borrow();
            (state.end, state.active().base)
        };
        let chunk = self.tail_chunk(end, base, bytes).await;
        let in_memory = self.state.borrow().tail.copy_partial(end, base);
        let partial = match in_memory {
            Some(partial) => partial,
            None => self.read_partial(end, base).await?,
        };
        let mut state = self.state.borrow_mut();
        let unchanged = state.end == end && state.active().base == base && state.holder.is_none();
        if unchanged && state.tail.room(end, base, bytes).is_none() {
            state.tail.push(chunk, end, &partial);
        }
        Ok(())
    }

    async fn tail_chunk(&self, end: u64, base: u64, bytes: usize) -> EnvChunk<E> {
        let bytes = bytes.max(1);
        let scarce = self.shard.is_memory_scarce();
        let (wished, needed) = {
            let state = self.state.borrow();
            (state.tail.chunk_bytes(end, base, bytes, scarce), state.tail.chunk_bytes(end, base, bytes, true))
        };
        match self.shard.try_allocate(wished, Purpose::Arrival) {
            Some(chunk) => chunk,
            None => self.shard.allocate(needed, Purpose::Arrival).await,
        }
    }

    /// Reads the bytes of the end's block below the end back from the file.
    async fn read_partial(&self, end: u64, base: u64) -> Result<Vec<u8>, AppendError> {
        let file = self.state.borrow().active().file.clone();
        let Some(file) = file else { return Ok(Vec::new()) };
        let partial = partial_bytes(end, base);
        let offset = end - base - partial as u64;
        let chunk = self.shard.allocate(BLOCK_BYTES, Purpose::Service).await;
        let error = match file.read(&chunk, 0, BLOCK_BYTES, offset).await {
            Ok(read) if read >= partial => return Ok(chunk.slice(0..partial).to_vec()),
            Ok(read) => {
                std::io::Error::other(format!("{read} bytes of the last block are there, {partial} were expected"))
            }
            Err(error) => error,
        };
        self.close_for_disk("reading the last block", &error);
        let state = self.state.borrow();
        Err(AppendError::Closed(state.refuses.clone().expect("the partition was just closed")))
    }
}
