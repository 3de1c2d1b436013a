//! A bench from its beginning to its table: the log that consumers read is made once; then each round measures the
//! references and every row, so that what is compared lies close together in time.

use std::fs;
use std::path::PathBuf;

use crate::Args;
use crate::book::Book;
use crate::cores::Cores;
use crate::machine::Machine;
use crate::rows::{self, Row};
use crate::{fio, instructions, raw};

/// What every row is given.
pub(crate) struct Bench {
    /// Where the binaries lie: beside this one.
    pub(crate) binaries: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) cores: Cores,
    pub(crate) seconds: u32,
    pub(crate) history_mib: u64,
}

/// Measures, prints the table, and writes the JSON.
pub(crate) fn run(args: &Args) -> Result<Book, String> {
    // Before this process is kept to some of the cores.
    let machine = Machine::look();
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    let binaries = executable.parent().ok_or("an executable lies in a directory")?.to_owned();
    fs::create_dir_all(&args.directory).map_err(|error| format!("{}: {error}", args.directory.display()))?;
    let directory = args.directory.canonicalize().map_err(|error| error.to_string())?;
    let bench =
        Bench { binaries, directory, cores: Cores::divide()?, seconds: args.seconds, history_mib: args.history_mib };
    let mut book = Book::default();
    let is_wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| name.starts_with(only.as_str()));
    let wanted: Vec<&Row> = rows::ROWS.iter().filter(|row| is_wanted(row.name)).collect();
    let measured = measure(&bench, args, &wanted, is_wanted("instructions"), &mut book);
    let cleaned = fs::remove_dir_all(&bench.directory);
    measured?;
    cleaned.map_err(|error| format!("{}: {error}", bench.directory.display()))?;
    fs::write(&args.json, book.to_json(&machine)).map_err(|error| format!("{}: {error}", args.json.display()))?;
    println!("{}, {} cores, Linux {}, {} rounds", machine.processor, machine.cores, machine.kernel, args.rounds);
    println!("{}", book.to_text());
    Ok(book)
}

fn measure(
    bench: &Bench,
    args: &Args,
    wanted: &[&Row],
    counts_instructions: bool,
    book: &mut Book,
) -> Result<(), String> {
    if wanted.iter().any(|row| row.reads_history) {
        tell("making the log that is consumed");
        rows::make_history(bench)?;
    }
    for round in 1..=args.rounds {
        if !wanted.is_empty() {
            tell(&format!("round {round} of {}: references", args.rounds));
            references(bench, book)?;
        }
        for row in wanted {
            tell(&format!("round {round} of {}: {}", args.rounds, row.name));
            (row.measure)(bench, book).map_err(|error| format!("{}: {error}", row.name))?;
        }
    }
    match &args.instructions {
        Some(program) if counts_instructions => {
            tell("instructions");
            instructions::count(book, program, &args.instructions_baseline)
        }
        _ => Ok(()),
    }
}

fn references(bench: &Bench, book: &mut Book) -> Result<(), String> {
    let Bench { cores, directory, .. } = bench;
    let seconds = bench.seconds.div_ceil(2);
    let (write_mb_per_s, written) = fio::disk_write(cores, directory, seconds)?;
    book.note("ref.disk_write", write_mb_per_s);
    book.note("ref.disk_read", fio::disk_read(cores, directory, seconds, written)?);
    let commit = fio::commit(cores, directory, seconds)?;
    book.note("ref.commit_p50", commit.p50_us);
    book.note("ref.commit_p99", commit.p99_us);
    let io = |error: std::io::Error| format!("a socket of the bench: {error}");
    let receiver = raw::receiver(cores, seconds).map_err(io)?;
    book.note("ref.receiver", receiver.mb_per_s);
    book.note("ref.receiver_cpu", receiver.cpu_per_gb);
    let sender = raw::sender(cores, directory, seconds).map_err(io)?;
    book.note("ref.sender", sender.mb_per_s);
    book.note("ref.sender_cpu", sender.cpu_per_gb);
    Ok(())
}

fn tell(what: &str) {
    eprintln!("corelane-bench: {what}");
}
