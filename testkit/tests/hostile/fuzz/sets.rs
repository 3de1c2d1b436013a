//! Message sets, whole and broken: lengths, checksums, attributes, what wrappers claim. A broken one often has a right
//! checksum again, so that the code behind that check is reached.

use corelane_proto::codec::Codec;
use corelane_proto::message::CRC_FROM;
use corelane_proto::wrapper;
use fastrand::Rng;

use super::protobuf::noise;
use crate::wire::set_of;

/// Where a message's length, checksum, attributes stand, and how long its header is (docs/format.md).
const LENGTH_AT: usize = 0;
const CRC_AT: usize = 4;
const ATTRIBUTES_AT: usize = 9;
const HEADER_BYTES: usize = 24;
/// Where a wrapper's three claims stand: messages, bytes unpacked, bytes stored.
const CLAIMS_AT: [usize; 3] = [HEADER_BYTES, HEADER_BYTES + 4, HEADER_BYTES + 8];

/// A set as a client would send it.
pub(crate) fn whole(random: &mut Rng) -> Vec<u8> {
    let bytes_max = [10, 100, 1_000, 100_000][random.choice([0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3]).expect("a choice")];
    let values: Vec<Vec<u8>> =
        (0..random.usize(1..6)).map(|_| vec![random.u8(..); random.usize(..bytes_max)]).collect();
    let set = set_of(&values);
    if random.u8(..4) > 0 {
        return set;
    }
    let codec = [Codec::StoredSet, Codec::Lz4, Codec::Zstd, Codec::Gzip, Codec::Snappy][random.usize(..5)];
    wrapper::wrap(codec, &set, true).map_or(set, |wrapped| wrapped.to_vec())
}

/// A set of which something is wrong, mostly.
pub(crate) fn broken(random: &mut Rng) -> Vec<u8> {
    let mut set = whole(random);
    for _ in 0..random.usize(1..3) {
        break_once(&mut set, random);
    }
    set
}

fn break_once(set: &mut Vec<u8>, random: &mut Rng) {
    if set.len() < CLAIMS_AT[2] + 4 {
        *set = noise(random, 100);
        return;
    }
    let border = [0, 1, 23, 24, 25, 0x7fff_ffff, 0x8000_0000, u32::MAX, set.len() as u32, set.len() as u32 + 1];
    let border = border[random.usize(..border.len())];
    match random.u8(..9) {
        0 => set[LENGTH_AT..][..4].copy_from_slice(&border.to_le_bytes()),
        1 => set[CRC_AT] ^= 1 << random.u8(..8),
        2 => set[ATTRIBUTES_AT] ^= 1 << random.u8(..8),
        3 => {
            let claim = CLAIMS_AT[random.usize(..3)];
            set[claim..][..4].copy_from_slice(&border.to_le_bytes());
        }
        4 => {
            // Any field of the first header.
            let at = random.usize(8..HEADER_BYTES);
            set[at] = random.u8(..);
        }
        5 => set.truncate(random.usize(1..set.len())),
        6 => set.extend(noise(random, 60)),
        7 => {
            let at = random.usize(..set.len());
            set[at] ^= 1 << random.u8(..8);
        }
        _ => *set = noise(random, 5_000),
    }
    if random.bool() {
        seal_first(set);
    }
}

/// Gives the first message the checksum that it should have, if it is whole.
fn seal_first(set: &mut [u8]) {
    let Some(length) = set.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes) as usize) else { return };
    if (HEADER_BYTES..=set.len()).contains(&length) {
        let crc = crc32fast::hash(&set[CRC_FROM..length]);
        set[CRC_AT..][..4].copy_from_slice(&crc.to_le_bytes());
    }
}
