//! What people and programs read on standard output: plain tables and JSON; and the question before a loss of data.
//!
//! Messages about the command itself go to standard error, so that output can always be piped on.

use std::io::{self, BufRead, IsTerminal, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::error::CliError;

/// A number of things in words: `1 topic`, `2 topics`.
pub(crate) fn count(number: impl Into<u64>, thing: &str) -> String {
    match number.into() {
        1 => format!("1 {thing}"),
        number => format!("{number} {thing}s"),
    }
}

/// A table without lines: one row a line, so that `grep` and `awk` work on it.
pub(crate) fn table(columns: &[(&str, CellAlignment)]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|(name, _)| *name));
    for (index, (_, alignment)) in columns.iter().enumerate() {
        let column = table.column_mut(index).expect("the header has made the column");
        column.set_cell_alignment(*alignment);
        column.set_padding(if index == 0 { (0, 1) } else { (1, 1) });
    }
    table
}

/// Prints a table without the blanks that pad its last column.
pub(crate) fn print_table(table: &Table) -> Result<(), CliError> {
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    print(&text)
}

/// Prints one JSON document on one line.
pub(crate) fn print_json(document: &impl Serialize) -> Result<(), CliError> {
    let mut text = serde_json::to_string(document).expect("our own documents have text keys");
    text.push('\n');
    print(&text)
}

/// Prints text as it is; a reader that has left is no failure.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CliError::Output(error)),
        _ => Ok(()),
    }
}

/// Asks on a terminal before something that cannot be undone; elsewhere `--yes` must have been given.
pub(crate) fn confirm(question: &str, yes: bool) -> Result<(), CliError> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(CliError::NeedsYes(question.to_owned()));
    }
    eprint!("{question} Type y to go on: ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(CliError::Input)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(CliError::NotConfirmed) }
}
