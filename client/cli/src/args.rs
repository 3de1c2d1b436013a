//! The command line as a whole: what every command shares, and the list of commands. Each family's own arguments stand
//! beside the code that carries them out.

use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use corelane_client::Client;

use crate::broker::BrokerCommand;
use crate::cluster::ClusterCommand;
use crate::consume::ConsumeArgs;
use crate::error::CliError;
use crate::export::{ExportArgs, ImportArgs};
use crate::group::GroupCommand;
use crate::log::LogCommand;
use crate::mirror::MirrorArgs;
use crate::parse::duration::parse_timeout;
use crate::produce::ProduceArgs;
use crate::registry::RegistryCommand;
use crate::topic::TopicCommand;

/// Publish to, read from and look after a Corelane cluster.
#[derive(Debug, Parser)]
#[command(
    name = "corelane",
    version,
    after_help = "\
Examples:
  corelane topic create access-log --partitions 4
  tail -F access.log | corelane produce access-log
  corelane consume access-log --from -1h --exit-at-end
  corelane consume access-log --group indexer
  corelane group describe indexer
  corelane mirror --from eu-1:9400 --to us-1:9400 --topics 'orders|payments' --group to-us
  corelane export page-views --to /warehouse/page-views --format parquet
  corelane --broker broker-1:9400,broker-2:9400 cluster describe
  corelane log verify /var/lib/corelane

With --json, results are JSON on standard output (docs/json.md names the fields), and a command that fails ends standard \
error with a line that holds a JSON object: error (a sentence), status (the broker's, or null), retryable, exit_status.

Exit status: 0 done; 1 failed, the reason is on standard error; 2 wrong arguments; 130 or 143 ended by Ctrl-C or \
SIGTERM before all was done. A reader of the output that leaves early (`| head`) ends the command with 0."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) shared: Shared,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Shared {
    /// Brokers to begin with; the first one that answers names the others. The variable `CORELANE_BROKER` holds the
    /// default
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT[,...]",
        value_delimiter = ',',
        default_values_t = brokers_default()
    )]
    pub(crate) broker: Vec<String>,

    /// Print JSON instead of tables and text; docs/json.md names the fields
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// The name by which brokers, and those who describe groups, know this command
    #[arg(long, global = true, value_name = "NAME", default_value = "corelane")]
    pub(crate) client_name: String,

    /// How long to wait for a connection and for each answer; changes of topics have a minute at least
    #[arg(long, global = true, value_name = "DURATION", default_value = "10s", value_parser = parse_timeout)]
    pub(crate) timeout: Duration,
}

/// A topic of thousands of partitions takes its time, and one given up half-way is made all the same.
const TOPIC_CHANGE_MIN: Duration = Duration::from_mins(1);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create, list, describe, alter, trim and delete topics
    #[command(subcommand)]
    Topic(TopicCommand),
    /// Publish a message for each line of a file or of standard input
    Produce(Box<ProduceArgs>),
    /// Print a topic's messages as they come
    Consume(Box<ConsumeArgs>),
    /// List, describe, reset, delete and verify groups of consumers
    #[command(subcommand)]
    Group(GroupCommand),
    /// Copy topics to another cluster as they grow
    Mirror(Box<MirrorArgs>),
    /// Write what came since the last time to files, for a warehouse
    Export(Box<ExportArgs>),
    /// Publish the messages of exported files
    Import(ImportArgs),
    /// Look at the cluster
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// List and describe brokers, forget one that will never come back
    #[command(subcommand)]
    Broker(BrokerCommand),
    /// Export, import and restore what brokers agree on; for brokers that do not run
    #[command(subcommand)]
    Registry(RegistryCommand),
    /// Check, show and repair the files of a data directory, without a broker
    #[command(subcommand)]
    Log(LogCommand),
    /// Print a script that completes commands and options in a shell
    #[command(after_help = "\
Examples:
  corelane completions bash > /etc/bash_completion.d/corelane
  source <(corelane completions zsh)")]
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// A default, not clap's `env`: what comes from there would be shown as an argument in every usage line.
fn brokers_default() -> Vec<String> {
    let named = std::env::var("CORELANE_BROKER").ok().filter(|brokers| !brokers.is_empty());
    named.unwrap_or_else(|| "127.0.0.1:9400".to_owned()).split(',').map(str::to_owned).collect()
}

impl Shared {
    /// Connects to the first broker that answers within the time-out.
    pub(crate) async fn connect(&self) -> Result<Client, CliError> {
        self.connect_to(&self.broker.join(",")).await
    }

    /// The same, for a cluster that another option names.
    pub(crate) async fn connect_to(&self, brokers: &str) -> Result<Client, CliError> {
        let client = Client::builder()
            .bootstrap(brokers)
            .client_name(&self.client_name)
            .connect_timeout(self.timeout)
            .request_timeout(self.timeout)
            .topic_timeout(self.timeout.max(TOPIC_CHANGE_MIN))
            .build()
            .await?;
        Ok(client)
    }
}

/// The completion script for a shell.
pub(crate) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "corelane", &mut script);
    String::from_utf8(script).expect("completion scripts are text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples() {
        fn check(command: &clap::Command) {
            if command.has_subcommands() {
                command.get_subcommands().for_each(check);
            } else {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Example"), "`{}` has no example", command.get_name());
            }
        }
        check(&Cli::command());
    }

    #[test]
    fn every_command_has_its_heading_in_the_page_about_json() {
        fn check(command: &clap::Command, before: &str, headings: &[&str]) {
            let name = format!("{before}{}", command.get_name());
            // A family does nothing by itself, but for `mirror`; a script for a shell is no JSON.
            if (!command.has_subcommands() || name == "mirror") && name != "completions" {
                let named = format!("`{name}`");
                assert!(headings.iter().any(|heading| heading.contains(&named)), "docs/json.md has no heading {named}");
            }
            command.get_subcommands().for_each(|command| check(command, &format!("{name} "), headings));
        }
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
        let page = std::fs::read_to_string(path).unwrap();
        let headings: Vec<&str> = page.lines().filter(|line| line.starts_with("## ")).collect();
        Cli::command().get_subcommands().for_each(|command| check(command, "", &headings));
    }

    #[test]
    fn every_shell_gets_a_script() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let script = completions(shell);
            assert!(script.contains("exit-at-end"), "{shell}");
        }
    }
}
