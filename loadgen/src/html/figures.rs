//! What a page tells in words and tables.

use std::fmt::Write;

use serde_json::Value;

use super::escape;
use crate::latency::Percentiles;
use crate::results::{Flow, Results};

/// What was run, in a line.
pub(super) fn lead(results: &[Results]) -> String {
    let [only] = results else { return format!("{} runs, the first one on top of each table", results.len()) };
    let settings = &only.settings;
    let mut parts = Vec::new();
    if settings.producers > 0 {
        let size = settings.size.as_deref().unwrap_or_default();
        let set = settings.set.unwrap_or_default();
        let producers = counted(settings.producers, "producer");
        parts.push(format!("{producers}, values of {size} bytes in sets of {set}"));
    }
    if settings.consumers > 0 {
        parts.push(counted(settings.consumers, "consumer"));
    }
    parts.push(counted(settings.partitions, "partition"));
    if let Some(rate) = settings.rate {
        parts.push(format!("{} messages a second", grouped(rate.round() as u64)));
    }
    parts.extend(settings.ramp.as_ref().map(|ramp| format!("a ramp of {ramp} messages a second")));
    parts.extend(settings.outstanding.map(|sets| format!("{sets} sets outstanding")));
    parts.push(only.started.clone());
    escape(&parts.join("; "))
}

fn counted(number: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// Whether the runs were verified, and what was wrong.
pub(super) fn judgement(results: &[Results], names: &[String]) -> String {
    let mut text = String::from("<p class=\"verdict\">");
    for (run, name) in results.iter().zip(names) {
        let name = if results.len() > 1 { format!("{}: ", escape(name)) } else { String::new() };
        let (class, verdict) = if run.is_success() { ("good", "verified") } else { ("bad", "NOT VERIFIED, or failed") };
        let _ = write!(text, "<span class=\"{class}\">{name}{verdict}</span>");
        if let Some(behind) = run.behind.filter(|behind| *behind > 0) {
            let _ = write!(
                text,
                "<span class=\"bad\">{name}{} messages behind the rate at the end</span>",
                grouped(behind)
            );
        }
    }
    text += "</p>\n";
    let wrong = results.iter().zip(names).filter(|(run, _)| !run.errors.is_empty());
    for (run, name) in wrong {
        let _ = write!(text, "<p>{}", escape(name));
        for (kind, messages) in &run.errors {
            let _ = write!(text, "<br>{}: {messages}", escape(kind));
        }
        for fault in &run.faults {
            let _ = write!(text, "<br>{}", escape(fault));
        }
        text += "</p>\n";
    }
    text
}

/// Throughput and latencies.
pub(super) fn tables(results: &[Results], names: &[String]) -> String {
    let mut flows = Vec::new();
    let mut latencies = Vec::new();
    for (run, name) in results.iter().zip(names) {
        let row = |what: &str| if results.len() > 1 { format!("{name}: {what}") } else { what.to_owned() };
        for (what, flow) in [("produce", &run.produce), ("consume", &run.consume)] {
            let Some(Flow { messages, bytes, seconds, messages_per_s, mb_per_s }) = flow else { continue };
            let cells = [
                grouped(*messages),
                grouped(*bytes),
                format!("{seconds:.2}"),
                grouped(messages_per_s.round() as u64),
                format!("{mb_per_s:.1}"),
            ];
            flows.push((row(what), cells.to_vec()));
        }
        for (what, _, latency) in run.latencies() {
            let Percentiles { mean, p50, p90, p99, p999, p9999, max, .. } = latency;
            let mut cells = vec![grouped(mean.round() as u64)];
            cells.extend([p50, p90, p99, p999, p9999, max].map(grouped));
            latencies.push((row(what), cells));
        }
    }
    table(&["throughput", "messages", "bytes", "seconds", "messages/s", "MB/s"], &flows)
        + &table(&["latency, us", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "max"], &latencies)
}

fn table(heads: &[&str], rows: &[(String, Vec<String>)]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = String::from("<div class=\"scroll\"><table>\n<tr>");
    for head in heads {
        let _ = write!(text, "<th>{head}</th>");
    }
    text += "</tr>\n";
    for (name, cells) in rows {
        let _ = write!(text, "<tr><td>{}</td>", escape(name));
        for cell in cells {
            let _ = write!(text, "<td>{cell}</td>");
        }
        text += "</tr>\n";
    }
    text + "</table></div>\n"
}

/// All settings, the machine and the brokers.
pub(super) fn details(results: &[Results], names: &[String]) -> String {
    let mut text = String::new();
    for (run, name) in results.iter().zip(names) {
        let title = if results.len() > 1 {
            format!("{}: settings and machine", escape(name))
        } else {
            "Settings and machine".to_owned()
        };
        let _ = write!(
            text,
            "<details>\n<summary>{title}</summary>\n<pre>corelane-loadgen {}\n\n",
            escape(&run.arguments.join(" "))
        );
        let all = serde_json::json!({ "settings": run.settings, "machine": run.machine });
        for part in ["settings", "machine"] {
            for (field, value) in all[part].as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
                let value = if let Value::String(value) = value { value.clone() } else { value.to_string() };
                let _ = writeln!(text, "{}: {}", escape(field), escape(&value));
            }
        }
        for broker in &run.brokers {
            let _ = writeln!(text, "broker {}: {}, {} shards", broker.id, escape(&broker.version), broker.shards);
        }
        let _ = writeln!(
            text,
            "load generator: {:.2} CPU-seconds, {:.2} us a message</pre>\n</details>",
            run.generator.cpu_s, run.generator.cpu_us_per_message
        );
    }
    text
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
