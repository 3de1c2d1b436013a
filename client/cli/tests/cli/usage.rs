//! What works without a broker: help, completions, wrong arguments.

use corelane_testkit::run;

use crate::{DEADLINE, corelane};

const WRONG: [&[&str]; 15] = [
    &[],
    &["nonsense"],
    &["topic"],
    &["consume"],
    &["consume", "t", "--from", "someday"],
    &["consume", "t", "--format", "vlaue"],
    &["consume", "t", "--last", "5", "--from", "latest"],
    &["produce", "t", "--key", "k", "--key-separator", ":"],
    &["produce", "t", "--compression", "rar"],
    &["topic", "create", "t", "--partitions", "0"],
    &["mirror", "--from", "a:1", "--to", "b:1", "--group", "g", "--topics", "("],
    &["topic", "create", "t", "--retention", "7"],
    &["--timeout", "0s", "topic", "list"],
    &["log", "verify"],
    &["log", "dump", ".", "--from", "earliest"],
];

#[test]
fn wrong_arguments_end_with_2_and_a_message_on_standard_error() {
    for args in WRONG {
        let finished = run(corelane().args(args), DEADLINE);
        assert_eq!(finished.status.code(), Some(2), "{args:?}");
        assert_eq!(finished.text(), "", "{args:?}");
        assert!(!finished.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn programs_are_told_of_wrong_arguments_in_json() {
    for args in WRONG {
        for args in [[&["--json"], args].concat(), [args, &["--json"]].concat()] {
            let finished = run(corelane().args(&args), DEADLINE);
            assert_eq!(finished.status.code(), Some(2), "{args:?}");
            assert_eq!(finished.text(), "", "{args:?}");
            let line = finished.stderr.lines().last().unwrap_or_default();
            let told: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{args:?}: {line}"));
            assert!(told["error"].as_str().is_some_and(|error| !error.is_empty()), "{args:?}: {line}");
            let rest = serde_json::json!({ "status": null, "retryable": false, "exit_status": 2 });
            for (field, value) in rest.as_object().expect("an object") {
                assert_eq!(told.get(field), Some(value), "{args:?}: {line}");
            }
        }
    }
}

#[test]
fn help_and_the_version_are_text_on_standard_output_whatever_else_is_asked_for() {
    for args in [&["--help"][..], &["--version"], &["topic", "list", "--help"]] {
        let plain = run(corelane().args(args), DEADLINE).success();
        let with_json = run(corelane().arg("--json").args(args), DEADLINE).success();
        assert!(!plain.stdout.is_empty() && plain.stdout == with_json.stdout, "{args:?}");
        assert_eq!((plain.stderr.as_str(), with_json.stderr.as_str()), ("", ""), "{args:?}");
    }
}

#[test]
fn an_alteration_without_a_setting_fails_before_it_connects() {
    let finished = run(corelane().args(["topic", "alter", "t"]), DEADLINE);
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.stderr.contains("nothing to alter"), "{}", finished.stderr);
}

#[test]
fn completions_are_scripts_that_the_shell_accepts() {
    let script = run(corelane().args(["completions", "bash"]), DEADLINE).success();
    let mut syntax_check = std::process::Command::new("bash");
    corelane_testkit::run_with_input(syntax_check.arg("-n"), &script.stdout, DEADLINE).success();
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = run(corelane().args(["completions", shell]), DEADLINE).success().text();
        assert!(script.contains("describe"), "{shell}");
    }
}

#[test]
fn help_shows_examples() {
    let commands = [&["--help"][..], &["produce", "--help"], &["consume", "--help"], &["topic", "create", "--help"]];
    let log_commands = [&["log", "verify", "--help"][..], &["log", "dump", "--help"], &["log", "repair", "--help"]];
    for args in commands.into_iter().chain(log_commands) {
        let help = run(corelane().args(args), DEADLINE).success().text();
        assert!(help.contains("Examples:\n  corelane"), "{args:?}: {help}");
    }
}

#[test]
fn a_mirror_s_help_names_no_option_that_it_does_not_use() {
    for args in [&["mirror", "--help"][..], &["mirror", "verify", "--help"]] {
        let help = run(corelane().args(args), DEADLINE).success().text();
        assert!(!help.contains("--broker") && help.contains("--timeout"), "{args:?}: {help}");
    }
}
