//! What is wrong with the arguments, told to programs: clap tells it to people, over several lines.

use std::ffi::OsString;

use clap::error::ErrorKind;

/// Whether arguments that could not be read ask for JSON.
pub(crate) fn asks_for_json(arguments: impl Iterator<Item = OsString>) -> bool {
    // Behind `--` there are no options any more.
    arguments.take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// What is wrong, on one line.
pub(crate) fn sentence(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "a command or its arguments are missing; --help shows what there is".to_owned();
    }
    let text = error.render().to_string();
    // What follows is how to use it, for whoever sees it.
    let is_advice = |paragraph: &&str| paragraph.starts_with("Usage:") || paragraph.starts_with("For more information");
    let on_one_line = |paragraph: &str| paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    let paragraphs: Vec<String> =
        text.split("\n\n").take_while(|paragraph| !is_advice(paragraph)).map(on_one_line).collect();
    paragraphs.join("; ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Cli;

    fn sentence_of(arguments: &[&str]) -> String {
        let arguments = [&["corelane"], arguments].concat();
        sentence(&Cli::try_parse_from(arguments).expect_err("these arguments are wrong"))
    }

    #[test]
    fn one_line_says_what_is_wrong_and_not_how_it_is_used() {
        let unknown = sentence_of(&["topic", "lst"]);
        assert!(unknown.starts_with("unrecognized subcommand 'lst'; tip: "), "{unknown}");
        let missing = sentence_of(&["topic", "trim", "t"]);
        assert!(missing.contains("--partition <P> --to <POSITION>") && !missing.contains("Usage"), "{missing}");
        assert!(sentence_of(&["topic"]).contains("missing"));
        for arguments in [&["topic", "lst"][..], &["topic", "trim", "t"], &["topic"], &["produce", "t", "--acks", "x"]]
        {
            let sentence = sentence_of(arguments);
            assert!(!sentence.contains('\n') && !sentence.contains("--help'"), "{sentence}");
        }
    }

    #[test]
    fn json_is_asked_for_by_an_option_and_not_by_a_value() {
        let asks = |arguments: &[&str]| asks_for_json(arguments.iter().map(OsString::from));
        assert!(asks(&["corelane", "--json", "topic"]) && asks(&["corelane", "topic", "lst", "--json"]));
        assert!(!asks(&["corelane", "topic", "lst"]) && !asks(&["corelane", "consume", "--", "--json"]));
    }
}
