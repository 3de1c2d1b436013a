//! The tables of docs/protocol.md say what the code says.

use corelane_proto::frame::{Method, Retry, Status};

/// The rows of the page's tables, cells trimmed.
fn rows() -> Vec<Vec<String>> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/protocol.md");
    let page = std::fs::read_to_string(page).unwrap();
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    page.lines().filter(|line| line.starts_with('|')).map(cells).collect()
}

#[test]
fn the_methods_are_documented_with_their_numbers() {
    let rows = rows();
    for method in Method::all() {
        let (code, name) = (method.code().to_string(), format!("`{method:?}`"));
        assert!(rows.iter().any(|row| row.starts_with(&[code.clone(), name.clone()])), "no row | {code} | {name} |");
    }
}

#[test]
fn the_statuses_are_documented_with_their_rules() {
    let rows = rows();
    for status in Status::all() {
        let retry = match status.retry() {
            Retry::No => "no",
            Retry::Here => "here",
            Retry::Elsewhere => "elsewhere",
        };
        let used_up = if status.uses_up_sequence() { "yes" } else { "no" };
        let row =
            [&status.code().to_string(), &format!("`{status}`"), retry, used_up, status.advice()].map(str::to_owned);
        assert!(rows.contains(&row.to_vec()), "no row | {} |", row.join(" | "));
    }
}
