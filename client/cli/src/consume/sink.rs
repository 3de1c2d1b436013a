//! Where consumed messages are written: standard output or a file, by a thread of its own.
//!
//! The thread may block on a slow reader for as long as it likes: the command goes on answering signals, since it hands
//! over full buffers and never waits for more than one of them. Three buffers go round, so memory is bounded.
//! A second thread waits for the reader of a pipe to leave, so that an idle topic does not keep the command alive.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::{Notify, mpsc, oneshot, watch};

/// A buffer is handed over from this size on.
const BUFFER_BYTES: usize = 256 * 1024;
/// Buffers on their way to the writer; one more is being filled and one being written.
const BUFFERS_QUEUED: usize = 1;

/// The far end does not take anything any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SinkClosed;

/// The end of the pipeline of `consume`.
pub(crate) struct Sink {
    buffer: Vec<u8>,
    full: mpsc::Sender<Vec<u8>>,
    empty: mpsc::Receiver<Vec<u8>>,
    result: oneshot::Receiver<io::Result<()>>,
    /// How many buffers were handed over, and how many of them are written.
    handed: u64,
    written: watch::Receiver<u64>,
    reader_left: Arc<Notify>,
}

impl Sink {
    /// Writes to standard output, unbuffered but for what this type gathers.
    pub(crate) fn stdout() -> io::Result<Self> {
        // A plain file on the same descriptor: `Stdout` would look for newlines in what is already gathered.
        Self::start(File::from(io::stdout().as_fd().try_clone_to_owned()?))
    }

    /// Writes to a file, which is made or emptied first.
    pub(crate) fn file(path: &Path) -> io::Result<Self> {
        Self::start(File::create(path)?)
    }

    fn start(file: File) -> io::Result<Self> {
        let reader_left = Arc::new(Notify::new());
        watch_reader(&file, Arc::clone(&reader_left))?;
        let (full, to_write) = mpsc::channel(BUFFERS_QUEUED);
        let (written, empty) = mpsc::channel(BUFFERS_QUEUED + 1);
        let (done, result) = oneshot::channel();
        let (count, count_written) = watch::channel(0);
        thread::Builder::new().name("output".to_owned()).spawn(move || {
            // Nobody waits for the result when the command is being interrupted.
            let _ = done.send(write_buffers(file, to_write, &written, &count));
        })?;
        let (buffer, handed) = (Vec::with_capacity(BUFFER_BYTES), 0);
        Ok(Self { buffer, full, empty, result, handed, written: count_written, reader_left })
    }

    /// The buffer to append to.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Whether the buffer should be handed over before more is appended.
    pub(crate) fn is_full(&self) -> bool {
        self.buffer.len() >= BUFFER_BYTES
    }

    /// Hands what was gathered to the writer; waits while the writer has not taken the buffer before it.
    pub(crate) async fn flush(&mut self) -> Result<(), SinkClosed> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let permit = self.full.reserve().await.map_err(|_| SinkClosed)?;
        let mut spare = self.empty.try_recv().unwrap_or_default();
        spare.clear();
        permit.send(std::mem::replace(&mut self.buffer, spare));
        self.handed += 1;
        Ok(())
    }

    /// How many buffers were handed to the writer so far.
    pub(crate) fn handed(&self) -> u64 {
        self.handed
    }

    /// How many of them are written.
    pub(crate) fn written(&self) -> u64 {
        *self.written.borrow()
    }

    /// Resolves when more than so many are written; while nothing waits for the writer, never.
    pub(crate) async fn more_written(&self, than: u64) {
        if self.written.clone().wait_for(|written| *written > than).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when everything that was handed over is written, or never will be.
    pub(crate) async fn all_written(&self) {
        // An error means that the writer has ended.
        let _ = self.written.clone().wait_for(|written| *written >= self.handed).await;
    }

    /// Resolves when the writer has failed or the reader of the pipe is gone.
    pub(crate) async fn closed(&self) {
        tokio::select! {
            () = self.full.closed() => {}
            () = self.reader_left.notified() => {}
        }
    }

    /// Writes the rest and says how the writing went. A reader that left is no failure: it had what it wanted.
    pub(crate) async fn finish(mut self) -> io::Result<()> {
        // A refusal here means that the writer has ended; its result says why.
        let _ = self.flush().await;
        drop(self.full);
        match self.result.await {
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }
}

fn write_buffers(
    mut file: File,
    mut to_write: mpsc::Receiver<Vec<u8>>,
    written: &mpsc::Sender<Vec<u8>>,
    count: &watch::Sender<u64>,
) -> io::Result<()> {
    while let Some(buffer) = to_write.blocking_recv() {
        file.write_all(&buffer)?;
        count.send_modify(|count| *count += 1);
        // One that a large message has made larger than usual is not kept.
        if buffer.capacity() <= 2 * BUFFER_BYTES {
            let _ = written.try_send(buffer);
        }
    }
    Ok(())
}

/// Starts a thread that sleeps until the other end of `file` is closed; of a file that has none, for ever.
fn watch_reader(file: &File, reader_left: Arc<Notify>) -> io::Result<()> {
    let watched = file.try_clone()?;
    thread::Builder::new().name("output-closed".to_owned()).spawn(move || {
        // No event is asked for: only an error or a hang-up ends the wait.
        let mut descriptors = [PollFd::new(&watched, PollFlags::empty())];
        while poll(&mut descriptors, None).is_err_and(|error| error == rustix::io::Errno::INTR) {}
        reader_left.notify_one();
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn everything_arrives_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut expected = Vec::new();
        run(async {
            let mut sink = Sink::file(&path).unwrap();
            for number in 0..200_000_u32 {
                sink.buffer().extend_from_slice(&number.to_le_bytes());
                expected.extend_from_slice(&number.to_le_bytes());
                if sink.is_full() || number % 50_000 == 0 {
                    sink.flush().await.unwrap();
                }
            }
            sink.finish().await.unwrap();
        });
        assert_eq!(std::fs::read(&path).unwrap(), expected);
    }

    #[test]
    fn a_reader_that_leaves_is_noticed_without_a_write() {
        let (mut reader, writer) = io::pipe().unwrap();
        run(async {
            let mut sink = Sink::start(File::from(std::os::fd::OwnedFd::from(writer))).unwrap();
            sink.buffer().extend_from_slice(b"first\n");
            sink.flush().await.unwrap();
            let mut first = [0; 6];
            reader.read_exact(&mut first).unwrap();
            drop(reader);
            sink.closed().await;
            sink.buffer().extend_from_slice(b"second\n");
            sink.finish().await.unwrap();
        });
    }

    #[test]
    fn a_failed_write_is_reported() {
        run(async {
            let mut sink = Sink::start(File::options().write(true).open("/dev/full").unwrap()).unwrap();
            sink.buffer().push(b'x');
            sink.flush().await.unwrap();
            sink.closed().await;
            assert_eq!(sink.finish().await.unwrap_err().kind(), io::ErrorKind::StorageFull);
        });
    }
}
