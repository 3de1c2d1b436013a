//! Fetch: a piece of a partition's log as it lies there, from the message that contains a position or on from exactly a
//! byte. At the visible end it waits. Nothing that is sent is parsed.

use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use corelane_log::env::Env;
use corelane_log::{Bounds, Piece, ReadError};
use corelane_proto::ids::Position;
use corelane_proto::pb;
use futures_util::future::{Either, select};

use super::context::{Counters, LogBytes, LongPolls, Partition, Reply, ShardContext};
use super::invalid_field;
use super::locate::{locate, out_of_range, read_failure};
use crate::limits::{FETCH_BYTES_MAX, FETCH_WAIT_MAX};
use crate::messages::Failure;

/// Answers a Fetch of a connection that counts its waits in `waits`. Dropped with its connection, and its wait with it.
pub async fn fetch(context: Rc<ShardContext>, waits: LongPolls, request: pb::FetchRequest) -> Reply {
    let mut began = Instant::now();
    match try_fetch(&context, &waits, &request, &mut began).await {
        Ok(reply) => {
            context.counters.times.fetch.record(began.elapsed());
            Counters::add(&context.counters.fetches, 1);
            Counters::add(&context.counters.fetched_bytes, reply.payload_bytes() as u64);
            reply
        }
        Err(failure) => failure.into(),
    }
}

/// Sets `began` anew when a wait for news ends: it is no work of ours.
async fn try_fetch(
    context: &ShardContext,
    waits: &LongPolls,
    request: &pb::FetchRequest,
    began: &mut Instant,
) -> Result<Reply, Failure> {
    let (key, partition) = locate(context, &request.topic_id, request.partition, request.epoch)?;
    let bytes_max = (request.max_bytes as usize).min(FETCH_BYTES_MAX);
    if bytes_max == 0 {
        return Err(invalid_field("max_bytes", "at least one byte must be asked for"));
    }
    let position = Position(request.position);
    let mut bounds = partition.bounds();
    if position < bounds.start || position > bounds.end {
        return Err(out_of_range(bounds.start.0, bounds.end.0));
    }
    if position >= bounds.visible_end {
        let wait = Duration::from_millis(u64::from(request.max_wait_ms)).min(FETCH_WAIT_MAX);
        if !wait.is_zero() {
            let _waiting = context.begin_long_poll(waits)?;
            let waited = wait_visible(context, &partition, position, wait).await;
            *began = Instant::now();
            bounds = waited.map_err(|error| read_failure(&error))?;
        }
    }
    if position >= bounds.visible_end {
        return Ok(Reply::ok(&response(bounds, position)));
    }
    let begin = if request.continues {
        position
    } else {
        partition.seek(position).await.map_err(|error| read_failure(&error))?
    };
    let pieces = partition.read(begin, bytes_max).await.map_err(|error| read_failure(&error))?;
    let bytes = pieces.iter().map(Piece::bytes).sum();
    // It may have been let go meanwhile, and its count with it.
    if context.partitions.borrow().contains_key(&key) {
        *context.counters.fetched_by_partition.borrow_mut().entry(key).or_default() += bytes as u64;
    }
    let response = response(partition.bounds(), begin);
    let promise = partition.promise(begin);
    Ok(Reply::with_payload(&response, LogBytes { promise, begin, bytes, pieces }))
}

fn response(bounds: Bounds, begin: Position) -> pb::FetchResponse {
    pb::FetchResponse { start: bounds.start.0, visible_end: bounds.visible_end.0, begin: begin.0 }
}

/// Waits until something at or above `position` is visible, or the time is up.
async fn wait_visible(
    context: &ShardContext,
    partition: &Partition,
    position: Position,
    wait: Duration,
) -> Result<Bounds, ReadError> {
    match select(pin!(partition.wait_visible(position)), pin!(context.env.sleep(wait))).await {
        Either::Left((bounds, _)) => bounds,
        Either::Right(_) => Ok(partition.bounds()),
    }
}
