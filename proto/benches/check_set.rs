//! How fast a set is checked, built and walked, in one thread: `cargo bench -p corelane-proto`. Prints the best of several
//! rounds, beside the CRC alone over the same pieces, which is the bound.

use std::hint::black_box;
use std::time::{Duration, Instant};

use corelane_proto::codec::Codec;
use corelane_proto::message::{Message, MessageParts};
use corelane_proto::set::{Reserved, SetBuilder, SetLimits, check_set, walk};
use corelane_proto::wrapper;

const SET_BYTES: usize = 64 << 10;
const LIMITS: SetLimits = SetLimits {
    message_bytes_max: 1 << 20,
    set_bytes_max: 1 << 20,
    uncompressed_bytes_max: 1 << 20,
    reserved: Reserved::Refuse,
};

fn main() {
    // Run by a test runner, not by `cargo bench`: only show that it runs.
    let round = if std::env::args().any(|arg| arg == "--bench") { Duration::from_millis(200) } else { Duration::ZERO };
    for message_bytes in [100, 200, 1000, 10_000] {
        let value = vec![b'x'; message_bytes - 24];
        let parts = MessageParts { value: Some(&value), timestamp_ms: 1, ..MessageParts::default() };
        let set = build(&parts, &mut SetBuilder::new());
        let bytes = set.len();
        let mut builder = SetBuilder::new();
        println!("{message_bytes}-byte messages, sets of {bytes} bytes:");
        report("crc alone", message_bytes, bytes, round, || {
            for message in set.chunks(message_bytes) {
                black_box(crc32fast::hash(&message[8..]));
            }
        });
        report("check_set", message_bytes, bytes, round, || {
            black_box(check_set(black_box(&set), &LIMITS)).unwrap();
        });
        report("walk", message_bytes, bytes, round, || {
            for message in walk(black_box(&set), 1 << 20) {
                black_box(message.unwrap().value());
            }
        });
        report("build", message_bytes, bytes, round, || {
            black_box(build(black_box(&parts), &mut builder));
        });
    }
    wrappers(round);
}

/// Wrapping and unwrapping sets of 50 lines that compress about as log lines do.
fn wrappers(round: Duration) {
    let mut builder = SetBuilder::new();
    for index in 0..50_u32 {
        let noise = index.wrapping_mul(2_654_435_761);
        let line = format!(
            "2026-01-01 00:00:{index:02} host-{:02} service[{noise}]: GET /items/{noise:x}?page={index} took {} ms, \
             answered 200, bytes {}, agent Mozilla/5.0 (X11; Linux x86_64), trace {:016x}{:016x}",
            noise % 17,
            noise % 997,
            noise % 65_537,
            u64::from(noise).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            u64::from(noise).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        );
        builder.push(&MessageParts { value: Some(line.as_bytes()), ..MessageParts::default() }).unwrap();
    }
    let set = builder.finish();
    let (bytes, message_bytes) = (set.len(), set.len() / 50);
    println!("log lines of {message_bytes} bytes, sets of 50, {bytes} bytes:");
    for codec in [Codec::StoredSet, Codec::Lz4, Codec::Zstd, Codec::Snappy, Codec::Gzip] {
        let wrapped = wrapper::wrap(codec, &set, true).unwrap();
        println!("  {codec}: {} bytes", wrapped.len());
        report("wrap", message_bytes, bytes, round, || {
            black_box(wrapper::wrap(codec, black_box(&set), true)).unwrap();
        });
        report("unwrap", message_bytes, bytes, round, || {
            let message = Message::parse(black_box(&wrapped), 1 << 20).unwrap();
            black_box(wrapper::unwrap(&message, 1 << 20)).unwrap();
        });
    }
}

fn build(parts: &MessageParts<'_>, builder: &mut SetBuilder) -> bytes::Bytes {
    while builder.bytes() + parts.encoded_bytes() <= SET_BYTES {
        builder.push(parts).unwrap();
    }
    builder.finish()
}

fn report(name: &str, message_bytes: usize, set_bytes: usize, round: Duration, mut work: impl FnMut()) {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let begin = Instant::now();
        let mut sets = 0;
        while sets == 0 || begin.elapsed() < round {
            for _ in 0..16 {
                work();
            }
            sets += 16;
        }
        best = best.min(begin.elapsed().as_secs_f64() / f64::from(sets));
    }
    let messages = (set_bytes / message_bytes) as f64;
    let (gb_per_s, ns) = (set_bytes as f64 / best / 1e9, best / messages * 1e9);
    println!("  {name:10} {gb_per_s:6.2} GB/s {ns:7.1} ns/message");
}
