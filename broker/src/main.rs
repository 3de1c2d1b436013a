//! The Corelane broker: reads its settings, then runs until it is told to stop.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command};
use corelane_broker::config::{Config, ConfigError, SETTINGS};
use corelane_broker::{control, telemetry};

const EXAMPLES: &str = "\
Examples:
  corelane-broker --data ./data
      A broker for this machine only, with everything else as it is by default.
  corelane-broker --data /var/lib/corelane --listen 0.0.0.0:9400 --advertise broker-1:9400
      A broker that other machines can reach. There is no login yet: only inside a trusted network.
  corelane-broker --config /etc/corelane.toml --shards 4
      Settings from a file; flags go before the environment, the environment before the file.
  corelane-broker --segment-bytes 256MiB --print-config > corelane.toml
      The settings as they would hold, as a file to begin with.

Ready is one line on stdout; log lines are on stderr. SIGTERM and SIGINT stop the broker in order.";

fn main() -> ExitCode {
    let matches = command().get_matches();
    let config = match load(&matches, std::env::vars_os()) {
        Ok(config) => config,
        Err(error) => return refuse(&error),
    };
    if matches.get_flag("print-config") {
        print!("{}", config.to_toml());
        return ExitCode::SUCCESS;
    }
    if let Err(error) = telemetry::logs::init(config.log_format, &config.log_level) {
        return refuse(&error);
    }
    match control::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refuse(&error),
    }
}

fn refuse(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("corelane-broker: {error}");
    ExitCode::FAILURE
}

/// Every setting as a flag.
fn command() -> Command {
    let mut command = Command::new("corelane-broker")
        .version(env!("CARGO_PKG_VERSION"))
        .about("The Corelane broker: keeps partitioned logs and serves producers and consumers.")
        .after_help(EXAMPLES)
        // A wrapper's flags can be overruled behind them.
        .args_override_self(true)
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(clap::value_parser!(PathBuf))
                .help("A TOML file with settings [env: CORELANE_CONFIG]"),
        )
        .arg(
            Arg::new("print-config")
                .long("print-config")
                .action(ArgAction::SetTrue)
                .help("Print the settings as they would hold, as a file that can be loaded, and stop"),
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
