//! The Corelane broker: reads its settings, then runs until it is told to stop.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command};
use corelane_broker::config::{Config, ConfigError, SETTINGS};
use corelane_broker::control::tool;
use corelane_broker::{control, telemetry};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  corelane-broker --data ./data
      A broker for this machine only, with everything else as it is by default.
  corelane-broker --data /var/lib/corelane --listen 0.0.0.0:9400 --advertise broker-1:9400
      A broker that other machines can reach. There is no login yet: only inside a trusted network.
  corelane-broker --config /etc/corelane.toml --shards 4
      Settings from a file; flags go before the environment, the environment before the file.
  corelane-broker check --config /etc/corelane.toml
      Whether the settings are good, before the broker is restarted with them.
  corelane-broker --segment-bytes 256MiB --print-config > corelane.toml
      The settings as they would hold, as a file to begin with.

Ready is one line on stdout; log lines are on stderr. SIGTERM and SIGINT stop the broker in order.";

fn main() -> ExitCode {
    let matches = command().get_matches();
    let done = match matches.subcommand() {
        Some(("registry", tools)) => Some(run_tool(tools)),
        Some((_, checked)) => Some(check(checked)),
        None => None,
    };
    if let Some(done) = done {
        return match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => refuse(&*error),
        };
    }
    let config = match load(&matches, std::env::vars_os()) {
        Ok(config) => config,
        Err(error) => return refuse(&error),
    };
    if let Err(error) = telemetry::logs::check(&config.log_level) {
        return refuse(&error);
    }
    if matches.get_flag("print-config") {
        print!("{}", config.to_toml());
        return ExitCode::SUCCESS;
    }
    let level = match telemetry::logs::init(config.log_format, &config.log_level) {
        Ok(level) => level,
        Err(error) => return refuse(&error),
    };
    match control::run(config, level) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refuse(&error),
    }
}

fn refuse(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("corelane-broker: {error}");
    ExitCode::FAILURE
}

/// `check`: whether a broker would take the settings, and which of them are not as by default. Nothing is opened, made or
/// listened on.
fn check(matches: &ArgMatches) -> Result<(), Box<dyn std::error::Error>> {
    let config = load(matches, std::env::vars_os())?;
    telemetry::logs::check(&config.log_level)?;
    config.check_surroundings()?;
    let changed = config.to_toml_changed();
    println!("the settings are good; {} of {} are not as by default", changed.lines().count(), SETTINGS.len());
    print!("{changed}");
    Ok(())
}

/// `registry`: on a registry whose broker, if it is an embedded one, does not run.
fn run_tool(tools: &ArgMatches) -> Result<(), Box<dyn std::error::Error>> {
    let Some((name, matches)) = tools.subcommand() else { unreachable!("clap asks for one") };
    let mut config = load(matches, std::env::vars_os())?;
    let is_json = matches.get_flag("json");
    match name {
        "export" => std::io::stdout().write_all(tool::export(&config)?.as_bytes())?,
        "import" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            let records = tool::import(&config, &text)?;
            if is_json {
                println!("{}", json!({ "records": records }));
            } else {
                eprintln!("imported {records} records");
            }
        }
        _ => {
            config.data.clone_from(matches.get_one::<PathBuf>("dir").expect("clap asks for it"));
            let restored = tool::restore(&config)?;
            if is_json {
                let (topics, partitions) = (restored.topics, restored.partitions);
                let report = json!({
                    "topics": topics,
                    "partitions": partitions,
                    "left_alone": restored.left,
                    "missing": restored.missing,
                });
                println!("{report}");
                return Ok(());
            }
            for left in &restored.left {
                eprintln!("left alone: {left}");
            }
            for missing in &restored.missing {
                eprintln!("not brought back yet: {missing}");
            }
            println!("restored {} topics, {} partitions", restored.topics, restored.partitions);
        }
    }
    Ok(())
}

/// Every setting as a flag; the tools that work on a registry take the same ones and show those that matter to them.
fn command() -> Command {
    let command = Command::new("corelane-broker")
        .version(env!("CARGO_PKG_VERSION"))
        .about("The Corelane broker: keeps partitioned logs and serves producers and consumers.")
        .after_help(EXAMPLES)
        .arg(
            Arg::new("print-config")
                .long("print-config")
                .action(ArgAction::SetTrue)
                .help("Print the settings as they would hold, as a file that can be loaded, and stop"),
        );
    let dir = Arg::new("dir")
        .value_name("DIR")
        .required(true)
        .value_parser(clap::value_parser!(PathBuf))
        .help("A broker's data directory; the broker must not run");
    let tools = Command::new("registry")
        .about("Export, import and restore what brokers agree on; see corelane registry --help")
        .subcommand_required(true)
        .subcommand(registry_tool(
            Command::new("export").about("Write the lasting records of the registry to standard output, as JSON"),
        ))
        .subcommand(registry_tool(
            Command::new("import").about("Read such records from standard input into a registry that has none"),
        ))
        .subcommand(registry_tool(
            Command::new("restore-from")
                .about("Make the records of a lost registry anew from what a data directory knows")
                .arg(dir),
        ));
    let check = Command::new("check").about("Check the settings, print those that are not as by default, and stop").after_help(
        "The environment and flags count as they do for a start. Exit status 0: a broker takes them; 1: it does not, and \
         standard error says which one and why.",
    );
    with_settings(command)
        .subcommand(tools)
        .subcommand(with_settings(check))
        .subcommand_negates_reqs(true)
        .args_conflicts_with_subcommands(true)
}

fn registry_tool(command: Command) -> Command {
    with_settings(command)
        .mut_args(|arg| {
            let name = arg.get_id().as_str();
            let matters = ["config", "data", "dir", "cluster"].contains(&name) || name.starts_with("etcd");
            arg.hide(!matters)
        })
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print what was done as JSON"))
}

fn with_settings(command: Command) -> Command {
    // A wrapper's flags can be overruled behind them.
    let mut command = command.args_override_self(true).arg(
        Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("A TOML file with settings [env: CORELANE_CONFIG]"),
    );
    for setting in SETTINGS {
        let lines: Vec<&str> = setting.doc.iter().map(|line| line.trim()).collect();
        let doc = lines.join(" ").replace('`', "");
        let help = format!(
            "{}. Takes {} [default: {}] [env: {}]",
            doc.trim_end_matches('.'),
            setting.range,
            setting.default,
            setting.variable()
        );
        // Made once, and as long-lived as the process.
        let flag: &'static str = setting.flag().leak();
        command = command.arg(Arg::new(setting.name).long(flag).value_name("VALUE").help(help));
    }
    command
}

fn load(matches: &ArgMatches, environment: impl Iterator<Item = (OsString, OsString)>) -> Result<Config, ConfigError> {
    // What is not UTF-8 cannot be a setting of ours.
    let environment: Vec<(String, String)> =
        environment.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect();
    let from_environment =
        || environment.iter().find(|(name, _)| name == "CORELANE_CONFIG").map(|(_, path)| PathBuf::from(path));
    let file = matches.get_one::<PathBuf>("config").cloned().or_else(from_environment);
    let flags: Vec<(&'static str, String)> = SETTINGS
        .iter()
        .filter_map(|setting| Some((setting.name, matches.get_one::<String>(setting.name)?.clone())))
        .collect();
    Config::load(file.as_deref(), environment, flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }
}
