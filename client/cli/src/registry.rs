//! `corelane registry`: what brokers agree on, as a file. The registry is the brokers' own: their program does the work,
//! this command finds it and hands its arguments on.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Subcommand;

use crate::error::CliError;

/// The arguments of one of the commands below, for the broker's program.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Handed {
    /// As `corelane-broker registry COMMAND --help` shows them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RegistryCommand {
    /// Write a registry's lasting records to standard output, as JSON
    #[command(after_help = "\
An embedded registry can be read while its broker does not run.

Examples:
  corelane registry export --data /var/lib/corelane > registry.json
  corelane registry export --etcd http://127.0.0.1:2379 --cluster main > registry.json")]
    Export(Handed),
    /// Read such records from standard input into a registry that has none
    #[command(after_help = "\
Example: a single broker becomes the first one of a cluster
  corelane registry export --data /var/lib/corelane > registry.json
  corelane registry import --etcd http://127.0.0.1:2379 --cluster main < registry.json
  corelane-broker --data /var/lib/corelane --etcd http://127.0.0.1:2379 --cluster main")]
    Import(Handed),
    /// Make the records of a lost registry anew from what a data directory knows; once for each broker's
    #[command(after_help = "\
Examples:
  corelane registry restore-from /var/lib/corelane
  corelane registry restore-from /var/lib/corelane --etcd http://127.0.0.1:2379 --cluster main")]
    RestoreFrom(Handed),
}

/// Becomes the broker's program.
pub(crate) fn run(command: &RegistryCommand, json: bool) -> Result<(), CliError> {
    let (name, handed) = match command {
        RegistryCommand::Export(handed) => ("export", handed),
        RegistryCommand::Import(handed) => ("import", handed),
        RegistryCommand::RestoreFrom(handed) => ("restore-from", handed),
    };
    let program = program();
    let cause =
        Command::new(&program).arg("registry").arg(name).args(json.then_some("--json")).args(&handed.arguments).exec();
    Err(CliError::File { path: program, cause })
}

/// The broker's program: beside this one, else wherever the shell would find it.
fn program() -> PathBuf {
    const NAME: &str = "corelane-broker";
    let beside = env::current_exe().ok().map(|own| own.with_file_name(NAME));
    beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from(NAME))
}
