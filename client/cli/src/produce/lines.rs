//! The input of `produce`, cut at line ends by a thread that may block on it.
//!
//! A line ends at a newline and nowhere else: a carriage return belongs to it, an empty line is a line, and what follows
//! the last newline is a line if there is anything. Whatever one read has completed is passed on at once, so that a
//! live input is published as it comes. A line longer than any message may be is read past and reported, so that no
//! input makes memory grow.

use std::io::{self, Read};
use std::thread;

use memchr::{memchr, memrchr};
use tokio::sync::mpsc;

/// What one read asks for.
const READ_BYTES: usize = 256 * 1024;
/// Blocks on their way; one more is being published.
const BLOCKS_QUEUED: usize = 2;

/// A piece of the input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Block {
    /// Whole lines, each with its newline; only the input's very last one may lack it.
    Lines(Vec<u8>),
    /// One line of so many bytes, too long to be kept.
    TooLong(u64),
}

/// The lines of a [`Block::Lines`], without their newlines.
pub(crate) fn lines_of(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = block;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let at = memchr(b'\n', rest).unwrap_or(rest.len());
        let line = &rest[..at];
        rest = rest.get(at + 1..).unwrap_or_default();
        Some(line)
    })
}

/// Starts the thread that reads `input` to its end. A failed read is the last thing that comes.
pub(crate) fn read_blocks(
    input: impl Read + Send + 'static,
    line_bytes_max: usize,
) -> io::Result<mpsc::Receiver<io::Result<Block>>> {
    let (to_publish, blocks) = mpsc::channel(BLOCKS_QUEUED);
    thread::Builder::new().name("input".to_owned()).spawn(move || {
        let mut splitter = Splitter::new(input, line_bytes_max);
        loop {
            let block = splitter.next_block();
            let last = !matches!(block, Ok(Some(_)));
            // A failed send means that the command was interrupted and wants no more.
            if block.transpose().is_some_and(|block| to_publish.blocking_send(block).is_err()) || last {
                return;
            }
        }
    })?;
    Ok(blocks)
}

struct Splitter<R> {
    input: R,
    line_bytes_max: usize,
    read_bytes: usize,
    /// The beginning of a line whose end has not been read yet.
    pending: Vec<u8>,
    /// How much of the pending line was dropped because it is too long.
    dropped_bytes: u64,
    at_end: bool,
}

impl<R: Read> Splitter<R> {
    fn new(input: R, line_bytes_max: usize) -> Self {
        Self { input, line_bytes_max, read_bytes: READ_BYTES, pending: Vec::new(), dropped_bytes: 0, at_end: false }
    }

    /// Reads until at least one line is complete.
    fn next_block(&mut self) -> io::Result<Option<Block>> {
        while !self.at_end {
            if self.dropped_bytes > 0 {
                // The end of the overlong line may lie in what is pending already.
                if let Some(at) = memchr(b'\n', &self.pending) {
                    self.pending.drain(..=at);
                    let line_bytes = std::mem::take(&mut self.dropped_bytes) + at as u64;
                    return Ok(Some(Block::TooLong(line_bytes)));
                }
                self.dropped_bytes += self.pending.len() as u64;
                self.pending.clear();
            }
            if let Some(block) = self.take_lines() {
                return Ok(Some(block));
            }
            if self.pending.len() > self.line_bytes_max {
                self.dropped_bytes = self.pending.len() as u64;
                self.pending = Vec::new();
            }
            self.at_end = self.read()? == 0;
        }
        Ok(self.take_rest())
    }

    /// The whole lines that are pending.
    fn take_lines(&mut self) -> Option<Block> {
        let whole_bytes = memrchr(b'\n', &self.pending)? + 1;
        let unfinished = self.pending[whole_bytes..].to_vec();
        let mut lines = std::mem::replace(&mut self.pending, unfinished);
        lines.truncate(whole_bytes);
        Some(Block::Lines(lines))
    }

    /// What follows the last newline of the input.
    fn take_rest(&mut self) -> Option<Block> {
        let rest = std::mem::take(&mut self.pending);
        match std::mem::take(&mut self.dropped_bytes) {
            0 => (!rest.is_empty()).then_some(Block::Lines(rest)),
            dropped_bytes => Some(Block::TooLong(dropped_bytes + rest.len() as u64)),
        }
    }

    fn read(&mut self) -> io::Result<usize> {
        let at = self.pending.len();
        self.pending.resize(at + self.read_bytes, 0);
        let read = loop {
            match self.input.read(&mut self.pending[at..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.pending.truncate(at + *read.as_ref().unwrap_or(&0));
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 64;

    #[derive(Debug, PartialEq, Eq)]
    enum Line {
        Whole(Vec<u8>),
        TooLong(u64),
    }

    /// The lines of `input` when each read gives at most `read_bytes`.
    fn split(input: &[u8], read_bytes: usize) -> Vec<Line> {
        let mut splitter = Splitter { read_bytes, ..Splitter::new(input, MAX) };
        let mut lines = Vec::new();
        while let Some(block) = splitter.next_block().unwrap() {
            match block {
                Block::Lines(bytes) => lines.extend(lines_of(&bytes).map(|line| Line::Whole(line.to_vec()))),
                Block::TooLong(bytes) => lines.push(Line::TooLong(bytes)),
            }
        }
        lines
    }

    fn whole(text: &[u8]) -> Line {
        Line::Whole(text.to_vec())
    }

    #[test]
    fn lines_are_the_same_however_the_input_comes() {
        let input = b"one\r\n\n\xff\x00odd\ntwo\rstill two\n\r\n\n\nlast";
        let expected = [&b"one\r"[..], b"", b"\xff\x00odd", b"two\rstill two", b"\r", b"", b"", b"last"];
        for read_bytes in 1..=input.len() {
            assert_eq!(split(input, read_bytes), expected.map(whole), "reads of {read_bytes}");
        }
    }

    #[test]
    fn only_bytes_after_the_last_newline_make_a_last_line() {
        assert_eq!(split(b"", 8), []);
        assert_eq!(split(b"\n", 8), [whole(b"")]);
        assert_eq!(split(b"\n\n", 8), [whole(b""), whole(b"")]);
        assert_eq!(split(b"a", 8), [whole(b"a")]);
        assert_eq!(split(b"a\n", 8), [whole(b"a")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_reported_and_the_others_are_whole() {
        let mut input = vec![b'x'; MAX];
        input.push(b'\n');
        input.extend(vec![b'y'; 5 * MAX]);
        input.extend_from_slice(b"\nz\n");
        input.extend(vec![b'w'; 10 * MAX]);
        for read_bytes in [1, 7, MAX, MAX + 1] {
            let expected = [whole(&[b'x'; MAX]), Line::TooLong(320), whole(b"z"), Line::TooLong(640)];
            assert_eq!(split(&input, read_bytes), expected, "reads of {read_bytes}");
        }
    }

    #[test]
    fn a_failed_read_is_told_after_the_lines_before_it() {
        struct Broken(usize);
        impl Read for Broken {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0 += 1;
                match self.0 {
                    1 => Err(io::ErrorKind::Interrupted.into()),
                    2 => (&b"whole\nhalf"[..]).read(buffer),
                    _ => Err(io::Error::other("gone")),
                }
            }
        }
        let mut blocks = read_blocks(Broken(0), MAX).unwrap();
        assert_eq!(blocks.blocking_recv().unwrap().unwrap(), Block::Lines(b"whole\n".to_vec()));
        assert_eq!(blocks.blocking_recv().unwrap().unwrap_err().to_string(), "gone");
        assert!(blocks.blocking_recv().is_none());
    }

    #[test]
    fn the_thread_reads_to_the_end() {
        let input = io::Cursor::new(b"a\nb\nc".repeat(100_000));
        let mut blocks = read_blocks(input, MAX).unwrap();
        let (mut lines, mut bytes) = (0, 0);
        while let Some(block) = blocks.blocking_recv() {
            let Block::Lines(block) = block.unwrap() else { panic!("no line is too long") };
            lines += lines_of(&block).count();
            bytes += block.len();
        }
        assert_eq!((lines, bytes), (200_001, 500_000));
    }
}
