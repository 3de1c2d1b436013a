//! The thread that runs a blocking client's connections.

use std::io;
use std::thread::JoinHandle;

use tokio::sync::oneshot;

/// A runtime on a thread of its own, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Runtime {
    handle: tokio::runtime::Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Runtime {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("corelane-client".to_owned()).spawn(move || {
            let _ = runtime.block_on(stopped);
            // A name that is being resolved shall not hold the program up.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn handle(&self) -> &tokio::runtime::Handle {
        &self.handle
    }

    /// Blocks the calling thread; the connections go on on the runtime's own.
    pub(super) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.handle.block_on(future)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
