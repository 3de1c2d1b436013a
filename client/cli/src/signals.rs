//! Ctrl-C and SIGTERM, as something to wait for beside the work.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Which signal asked the command to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interruption {
    Interrupt,
    Terminate,
}

impl Interruption {
    /// The exit status by which a shell knows such an end: 128 and the signal's number.
    pub(crate) fn exit_status(self) -> u8 {
        match self {
            Interruption::Interrupt => 130,
            Interruption::Terminate => 143,
        }
    }
}

/// Listens from its creation on; each signal is seen once.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// The next signal. May be dropped and called again without losing one.
    pub(crate) async fn next(&mut self) -> Interruption {
        tokio::select! {
            _ = self.interrupt.recv() => Interruption::Interrupt,
            _ = self.terminate.recv() => Interruption::Terminate,
        }
    }
}
