use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use corelane_log::env::{Arena, BLOCK_BYTES, Chunk};
use proptest::prelude::*;

use super::ShardArena;

const REGION_BYTES: usize = 2 << 20;

fn arena() -> ShardArena {
    ShardArena::new(REGION_BYTES).expect("2 MiB can be mapped")
}

fn poll_once(future: impl Future<Output = ()>) -> Poll<()> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate { bytes: usize },
    Fill { chunk: usize, bytes: usize },
    Slice { chunk: usize },
    Free { chunk: usize },
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        3 => (1_usize..300_000).prop_map(|bytes| Operation::Allocate { bytes }),
        4 => (any::<usize>(), 1_usize..20_000).prop_map(|(chunk, bytes)| Operation::Fill { chunk, bytes }),
        2 => any::<usize>().prop_map(|chunk| Operation::Slice { chunk }),
        2 => any::<usize>().prop_map(|chunk| Operation::Free { chunk }),
    ];
    proptest::collection::vec(operation, 1..200)
}

proptest! {
    /// Whatever is allocated, filled, sliced and freed: nobody's bytes are ever overwritten by another's.
    #[test]
    fn chunks_never_overlap_and_slices_never_change(operations in operations()) {
        let arena = arena();
        let mut chunks = Vec::new();
        let mut slices = Vec::new();
        for (number, operation) in operations.into_iter().enumerate() {
            let mark = number as u8;
            match operation {
                Operation::Allocate { bytes } => {
                    let before = arena.bytes_used();
                    if let Some(chunk) = arena.allocate(bytes) {
                        prop_assert!(chunk.capacity() >= bytes && chunk.capacity().is_multiple_of(BLOCK_BYTES));
                        prop_assert_eq!(arena.bytes_used(), before + chunk.capacity());
                        chunks.push(chunk);
                    } else {
                        prop_assert!(before > 0, "an empty arena has room for {} bytes", bytes);
                    }
                }
                Operation::Fill { chunk, bytes } if !chunks.is_empty() => {
                    let chunk = &chunks[chunk % chunks.len()];
                    let start = chunk.filled();
                    let end = chunk.capacity().min(start + bytes);
                    chunk.with_spare(start..end, |spare| spare.fill(mark));
                    chunk.fill_to(end);
                    slices.push((chunk.slice(start..end), vec![mark; end - start]));
                }
                Operation::Slice { chunk } if !chunks.is_empty() => {
                    let chunk = &chunks[chunk % chunks.len()];
                    let slice = chunk.slice(0..chunk.filled());
                    let content = slice.to_vec();
                    slices.push((slice, content));
                }
                Operation::Free { chunk } if !chunks.is_empty() => {
                    chunks.swap_remove(chunk % chunks.len());
                    slices.retain(|(slice, _)| !slice.is_empty() && slice[0] % 2 == 0);
                }
                _ => {}
            }
            for (slice, content) in &slices {
                prop_assert!(**slice == **content, "bytes under a slice changed");
            }
        }
        drop(chunks);
        drop(slices);
        prop_assert_eq!(arena.bytes_used(), 0);
        prop_assert!(arena.allocate(REGION_BYTES).is_some(), "freed memory did not merge again");
    }
}

#[test]
fn full_arena_refuses_and_tells_when_memory_came_back() {
    let arena = arena();
    let all = arena.allocate(arena.bytes_total()).expect("the whole region is free");
    assert!(arena.allocate(1).is_none());
    let released = arena.released();
    let mut released = pin!(released);
    let mut context = Context::from_waker(Waker::noop());
    assert!(released.as_mut().poll(&mut context).is_pending());
    drop(all);
    assert!(released.as_mut().poll(&mut context).is_ready());
    assert!(poll_once(arena.released()).is_pending(), "only what comes back after the call counts");
}

#[test]
fn slices_keep_memory_when_the_chunk_is_gone() {
    let arena = arena();
    let chunk = arena.allocate(BLOCK_BYTES).expect("room");
    chunk.with_spare(0..3, |spare| spare.copy_from_slice(b"abc"));
    chunk.fill_to(3);
    let slice = chunk.slice(0..3);
    drop(chunk);
    assert_eq!(arena.bytes_used(), BLOCK_BYTES);
    assert_eq!(&*slice.part(1..2), b"b");
    drop(slice);
    assert_eq!(arena.bytes_used(), 0);
}

fn panics(work: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err()
}

#[test]
fn every_way_to_alias_spare_bytes_panics() {
    let arena = arena();
    let chunk = arena.allocate(4 * BLOCK_BYTES).expect("room");
    let spare = |range: Range<usize>| chunk.with_spare(range, |_| ());
    chunk.fill_to(100);
    assert!(panics(|| spare(99..200)), "below the fill mark");
    assert!(panics(|| spare(100..4 * BLOCK_BYTES + 1)), "beyond the capacity");
    assert!(panics(|| drop(chunk.slice(0..101))), "a slice beyond the fill mark");
    assert!(panics(|| chunk.fill_to(99)), "a fill mark that goes down");
    chunk.with_spare(200..300, |_| {
        assert!(panics(|| spare(200..300)), "lent twice");
        assert!(panics(|| chunk.fill_to(250)), "filled while lent");
        assert!(panics(|| drop(chunk.grant(200..300))), "read into while lent");
        assert_eq!(chunk.slice(0..100).len(), 100, "filled bytes stay readable");
    });
    let grant = chunk.grant(BLOCK_BYTES..2 * BLOCK_BYTES);
    assert!(panics(|| spare(BLOCK_BYTES..BLOCK_BYTES + 1)), "lent while read into");
    assert!(panics(|| chunk.fill_to(BLOCK_BYTES + 1)), "filled while read into");
    assert!(panics(|| drop(chunk.grant(3 * BLOCK_BYTES..4 * BLOCK_BYTES))), "two reads at a time");
    spare(100..BLOCK_BYTES);
    grant.finish(BLOCK_BYTES);
    assert_eq!(chunk.filled(), 2 * BLOCK_BYTES);
    spare(2 * BLOCK_BYTES..3 * BLOCK_BYTES);
}
