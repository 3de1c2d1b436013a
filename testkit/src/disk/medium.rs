//! A disk's medium and the cache in front of it, in memory: what was written counts at once and stays only once flushed.
//! It fails, dawdles and loses power as it is told.

use std::collections::HashMap;
use std::time::Duration;

const BLOCK_BYTES: usize = 4096;
/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

type Blocks = HashMap<u64, Box<[u8]>>;

/// Bytes by which a request is known that is to fail.
pub(super) type Mark = Vec<u8>;

/// What goes wrong.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Writes that carry these bytes.
    pub(super) writes: Option<Mark>,
    /// Reads that would find these bytes.
    pub(super) reads: Option<Mark>,
    /// Every flush.
    pub(super) flushes: bool,
    /// Everything: the disk is gone.
    pub(super) all: bool,
    /// How long a flush takes.
    pub(super) flush_delay: Duration,
    /// How many bytes are read in a second, if that is limited.
    pub(super) read_bytes_a_second: Option<u32>,
}

/// The disk was told to fail this request.
#[derive(Debug)]
pub(super) struct Failed;

/// The disk.
#[derive(Debug, Default)]
pub(super) struct Medium {
    /// What a read finds.
    current: Blocks,
    /// What has been flushed.
    durable: Blocks,
    /// What has been written since, in order.
    unflushed: Vec<(u64, Vec<u8>)>,
    pub(super) faults: Faults,
    /// Requests that were failed.
    pub(super) failures: u64,
}

/// What became of the writes that were not flushed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PowerCut {
    /// They reached the medium.
    pub kept: usize,
    /// Some of their sectors did.
    pub torn: usize,
    /// They did not.
    pub lost: usize,
}

impl Medium {
    pub(super) fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), Failed> {
        copy_out(&self.current, offset, out);
        let is_bad = self.faults.all || self.faults.reads.as_ref().is_some_and(|mark| contains(out, mark));
        self.judge(is_bad)
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Failed> {
        let is_bad = self.faults.all || self.faults.writes.as_ref().is_some_and(|mark| contains(data, mark));
        self.judge(is_bad)?;
        copy_in(&mut self.current, offset, data);
        self.unflushed.push((offset, data.to_vec()));
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), Failed> {
        self.judge(self.faults.all || self.faults.flushes)?;
        for (offset, data) in self.unflushed.drain(..) {
            copy_in(&mut self.durable, offset, &data);
        }
        Ok(())
    }

    fn judge(&mut self, is_bad: bool) -> Result<(), Failed> {
        self.failures += u64::from(is_bad);
        if is_bad { Err(Failed) } else { Ok(()) }
    }

    /// The power has gone: of what was not flushed the medium has whatever chance left there. Works again.
    pub(super) fn lose_power(&mut self, random: &mut fastrand::Rng) -> PowerCut {
        let mut cut = PowerCut::default();
        for (offset, data) in std::mem::take(&mut self.unflushed) {
            match random.u8(0..10) {
                0..4 => cut.lost += 1,
                4..8 => {
                    cut.kept += 1;
                    copy_in(&mut self.durable, offset, &data);
                }
                _ => {
                    cut.torn += 1;
                    for (sector, at) in data.chunks(SECTOR_BYTES).zip((offset..).step_by(SECTOR_BYTES)) {
                        if random.bool() {
                            copy_in(&mut self.durable, at, sector);
                        }
                    }
                }
            }
        }
        self.current.clone_from(&self.durable);
        self.faults = Faults::default();
        cut
    }
}

/// The pieces of a range that lie in one block each: the block, where in it, where in the range, how many bytes.
fn pieces(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let (block, within) = (at / BLOCK_BYTES as u64, (at % BLOCK_BYTES as u64) as usize);
        let piece = (block, within, done, (BLOCK_BYTES - within).min(bytes - done));
        done += piece.3;
        (piece.3 > 0).then_some(piece)
    })
}

fn copy_in(blocks: &mut Blocks, offset: u64, data: &[u8]) {
    for (block, within, at, bytes) in pieces(offset, data.len()) {
        let block = blocks.entry(block).or_insert_with(|| vec![0; BLOCK_BYTES].into_boxed_slice());
        block[within..within + bytes].copy_from_slice(&data[at..at + bytes]);
    }
}

fn copy_out(blocks: &Blocks, offset: u64, out: &mut [u8]) {
    for (block, within, at, bytes) in pieces(offset, out.len()) {
        match blocks.get(&block) {
            Some(block) => out[at..at + bytes].copy_from_slice(&block[within..within + bytes]),
            None => out[at..at + bytes].fill(0),
        }
    }
}

fn contains(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.windows(mark.len()).any(|window| window == mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_flushed_outlives_a_power_cut_and_the_rest_is_up_to_chance() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut medium = Medium::default();
        medium.write(1000, &[1; 6000]).expect("written");
        medium.flush().expect("flushed");
        for at in 0..100 {
            medium.write(1 << 20 | at << 13, &[2; 8192]).expect("written");
        }
        let mut read = [0; 6000];
        medium.read(1000, &mut read).expect("read");
        assert_eq!(read, [1; 6000]);
        let cut = medium.lose_power(&mut random);
        assert!(cut.kept > 0 && cut.torn > 0 && cut.lost > 0 && cut.kept + cut.torn + cut.lost == 100, "{cut:?}");
        medium.read(1000, &mut read).expect("read");
        assert_eq!(read, [1; 6000]);
    }

    #[test]
    fn a_request_fails_by_its_mark() {
        let mut medium = Medium::default();
        medium.write(0, b"a good one, and a bad one").expect("written");
        medium.faults.writes = Some(b"bad".to_vec());
        medium.faults.reads = Some(b"bad".to_vec());
        assert!(medium.write(0, b"a bad one").is_err());
        assert!(medium.read(0, &mut [0; 30]).is_err());
        medium.read(0, &mut [0; 10]).expect("the mark lies behind it");
        medium.write(0, b"a good one").expect("written");
        assert_eq!(medium.failures, 2);
    }
}
