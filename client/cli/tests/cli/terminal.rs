//! What differs when a person sits at a terminal: questions and progress.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use corelane_testkit::wait_for;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::{DEADLINE, broker_with_topic, consume_all, json, produce};

/// A command whose standard input and error are a terminal that the test types on.
struct AtTerminal {
    child: Child,
    keyboard_and_screen: File,
}

impl AtTerminal {
    fn start(command: &mut Command) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("the system has pseudo-terminals");
        grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("a fresh pseudo-terminal can be unlocked");
        let name = ptsname(&terminal, Vec::new()).expect("it has a name");
        let far_end = || {
            let path = OsStr::from_bytes(name.as_bytes());
            Stdio::from(File::options().read(true).write(true).open(path).expect("its far end can be opened"))
        };
        let child = command.stdin(far_end()).stderr(far_end()).stdout(Stdio::piped()).spawn().expect("the CLI starts");
        Self { child, keyboard_and_screen: File::from(terminal) }
    }

    fn types(&mut self, text: &str) {
        self.keyboard_and_screen.write_all(text.as_bytes()).expect("somebody listens");
    }

    /// Reads the screen until it shows `text`.
    fn shows(&mut self, text: &str) -> String {
        let mut screen = Vec::new();
        let mut piece = [0; 256];
        while !String::from_utf8_lossy(&screen).contains(text) {
            let read = self.keyboard_and_screen.read(&mut piece).unwrap_or(0);
            assert!(read > 0, "the command ended without showing {text:?}: {}", String::from_utf8_lossy(&screen));
            screen.extend_from_slice(&piece[..read]);
        }
        String::from_utf8_lossy(&screen).into_owned()
    }

    fn end(&mut self) -> ExitStatus {
        wait_for("the command to end", DEADLINE, || self.child.try_wait().unwrap())
    }
}

#[test]
fn a_dangerous_command_asks_first() {
    let broker = broker_with_topic(1);
    produce(&broker, &[], b"precious\n");
    for answer in ["n\n", "\n", "\u{4}"] {
        let mut asked = AtTerminal::start(broker.cli().args(["topic", "delete", "t"]));
        asked.shows("Type y to go on");
        asked.types(answer);
        asked.shows("nothing was done");
        assert_eq!(asked.end().code(), Some(1));
    }
    assert_eq!(consume_all(&broker, &[]), b"precious\n");
    let mut asked = AtTerminal::start(broker.cli().args(["topic", "delete", "t"]));
    asked.shows("Type y to go on");
    asked.types("y\n");
    assert_eq!(asked.end().code(), Some(0));
    assert_eq!(json(&broker, &["--json", "topic", "list"]), serde_json::json!([]));
}

#[test]
fn lines_typed_at_a_terminal_are_published_with_progress_shown() {
    let broker = broker_with_topic(1);
    let mut typing = AtTerminal::start(broker.cli().args(["produce", "t"]));
    typing.types("one\ntwo\n");
    typing.shows("messages");
    // End of file, as a terminal knows it.
    typing.types("\u{4}");
    let screen = typing.shows("acknowledged");
    assert!(screen.contains("2 messages read, 2 acknowledged"), "{screen}");
    assert_eq!(typing.end().code(), Some(0));
    assert_eq!(consume_all(&broker, &[]), b"one\ntwo\n");
}
