//! Results as a page: one file without anything outside it, charts as SVG in it, readable in light and in dark. Several
//! results are laid over each other.

mod chart;
mod figures;
mod style;

use std::fmt::Write;

use crate::results::Results;
use chart::{Chart, Scale, Series};

/// The page. At least one result.
pub(crate) fn page(results: &[Results]) -> String {
    let names = names(results);
    let title = if results.len() == 1 { names[0].clone() } else { names.join(", ") };
    let mut body = String::new();
    let _ = write!(body, "<h1>{}</h1>\n<p class=\"lead\">{}</p>\n", escape(&title), figures::lead(results));
    body += &figures::judgement(results, &names);
    body += &figures::tables(results, &names);
    body += "<div class=\"charts\">\n";
    for chart in charts(results, &names) {
        body += &chart.to_figure();
    }
    body += "</div>\n";
    body += &figures::details(results, &names);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{} - corelane-loadgen</title>\n<style>{}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escape(&title),
        style::CSS
    )
}

/// What the runs are called; no two alike.
fn names(results: &[Results]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (number, result) in results.iter().enumerate() {
        let name = result.name.clone().unwrap_or_else(|| format!("load: {}", result.settings.mode));
        names.push(if names.contains(&name) { format!("{name} ({})", number + 1) } else { name });
    }
    names
}

/// Charts that have something to show.
fn charts(results: &[Results], names: &[String]) -> Vec<Chart> {
    let charts = if let [only] = results { charts_of_one(only) } else { charts_of_many(results, names) };
    charts.into_iter().filter(Chart::shows_something).collect()
}

/// Of one run: what belongs together in one chart.
fn charts_of_one(results: &Results) -> Vec<Chart> {
    let curves = results
        .latencies()
        .filter_map(|(name, field, _)| Some(Series::line(name, curve_points(results.curves.get(field)?))));
    let timeline = |name: &str, of: &dyn Fn(&crate::results::Moment) -> Option<f64>| {
        Series::line(name, timeline_points(results, of))
    };
    let rate = |messages: f64, seconds: f64| messages / seconds.max(1e-3);
    let mut throughput = Vec::new();
    if results.produce.is_some() {
        throughput.push(timeline("published", &|moment| Some(rate(moment.published as f64, moment.seconds))));
    }
    if results.consume.is_some() {
        throughput.push(timeline("consumed", &|moment| Some(rate(moment.consumed as f64, moment.seconds))));
    }
    throughput.push(timeline("asked for", &|moment| Some(rate(moment.offered?, moment.seconds))).dashed());
    let latency_over_time = |title: &str, of: &dyn Fn(&crate::results::Moment) -> Option<crate::latency::Brief>| {
        let series = vec![
            timeline("p50", &|moment| Some(of(moment)?.p50 as f64)),
            timeline("p99", &|moment| Some(of(moment)?.p99 as f64)),
            timeline("max", &|moment| Some(of(moment)?.max as f64)),
        ];
        Chart::new(title, Scale::Time, Scale::Latency, series).with_warm_up(results.settings.warmup_s)
    };
    vec![
        Chart::new("Latency by percentile", Scale::Percentile, Scale::Latency, curves.collect()),
        Chart::new("Messages a second", Scale::Time, Scale::Rate, throughput).with_warm_up(results.settings.warmup_s),
        latency_over_time("Latency over time: acknowledged", &|moment| moment.ack_us),
        latency_over_time("Latency over time: end to end", &|moment| moment.end_to_end_us),
    ]
}

/// Of many runs: a chart for each figure, with a line for each run.
fn charts_of_many(results: &[Results], names: &[String]) -> Vec<Chart> {
    let each = |of: &dyn Fn(&Results) -> Vec<(f64, f64)>| -> Vec<Series> {
        results.iter().zip(names).map(|(results, name)| Series::line(name, of(results))).collect()
    };
    let curves = |field: &'static str| {
        each(&|results| results.curves.get(field).map(|curve| curve_points(curve)).unwrap_or_default())
    };
    let over_time = |of: &dyn Fn(&crate::results::Moment) -> Option<f64>| each(&|results| timeline_points(results, of));
    let percentiles = |title: &str, field| Chart::new(title, Scale::Percentile, Scale::Latency, curves(field));
    let rates = |title: &str, of: &dyn Fn(&crate::results::Moment) -> u64| {
        let rate = over_time(&|moment| Some(of(moment) as f64 / moment.seconds.max(1e-3)));
        Chart::new(title, Scale::Time, Scale::Rate, rate)
    };
    vec![
        percentiles("Latency by percentile: acknowledged", "ack_us"),
        percentiles("Latency by percentile: end to end", "end_to_end_us"),
        rates("Published, messages a second", &|moment| moment.published),
        rates("Consumed, messages a second", &|moment| moment.consumed),
        Chart::new(
            "p99 over time: acknowledged",
            Scale::Time,
            Scale::Latency,
            over_time(&|moment| Some(moment.ack_us?.p99 as f64)),
        ),
        Chart::new(
            "p99 over time: end to end",
            Scale::Time,
            Scale::Latency,
            over_time(&|moment| Some(moment.end_to_end_us?.p99 as f64)),
        ),
    ]
}

/// How many messages there are for one that is slower, and how slow.
fn curve_points(curve: &[(f64, u64)]) -> Vec<(f64, f64)> {
    // The fastest of all is an outlier, not a percentile.
    let points = curve.iter().filter(|(quantile, _)| *quantile > 0.0 && *quantile < 1.0);
    points.map(|(quantile, latency_us)| (1.0 / (1.0 - quantile), *latency_us as f64)).collect()
}

fn timeline_points(results: &Results, of: &dyn Fn(&crate::results::Moment) -> Option<f64>) -> Vec<(f64, f64)> {
    results.timeline.iter().filter_map(|moment| Some((moment.at_s, of(moment)?))).collect()
}

/// Text as HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::example;

    /// Every tag is closed, in order; an error names what is not.
    fn well_formed(page: &str) -> Result<(), String> {
        const VOID: [&str; 3] = ["meta", "br", "!doctype"];
        let mut open = Vec::new();
        for piece in page.split('<').skip(1) {
            let (tag, text) = piece.split_once('>').ok_or_else(|| format!("`{piece}` is cut off"))?;
            if text.contains('>') || tag.matches('"').count() % 2 != 0 {
                return Err(format!("`{piece}` is not escaped"));
            }
            let name = tag.split([' ', '\n', '/']).find(|part| !part.is_empty()).unwrap_or_default();
            if tag.starts_with('/') {
                let begun = open.pop();
                if begun != Some(name) {
                    return Err(format!("{begun:?} is closed by {name}"));
                }
            } else if !tag.ends_with('/') && !VOID.contains(&name) {
                open.push(name);
            }
        }
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?} are not closed")) }
    }

    #[test]
    fn a_page_is_well_formed_and_needs_nothing_from_outside() {
        let evil = Results { name: Some("<script>\"&".to_owned()), ..example() };
        for results in [&[example()][..], &[evil, example(), example()], &[Results::default()]] {
            let page = page(results);
            assert_eq!(well_formed(&page), Ok(()), "{page}");
            for outside in ["http:", "https:", "<script", "<link", "url("] {
                let without_names = page.replace("http://www.w3.org/2000/svg", "");
                assert!(!without_names.contains(outside), "{outside}");
            }
        }
    }

    #[test]
    fn a_page_shows_what_there_is() {
        let one = page(&[example()]);
        for text in ["Latency by percentile", "Messages a second", "99.9%", "end to end", "verified", "<svg"] {
            assert!(one.contains(text), "{text}");
        }
        let many = page(&[example(), Results { name: Some("second run".to_owned()), verified: false, ..example() }]);
        assert!(many.contains("second run") && many.contains("NOT VERIFIED") && many.matches("<svg").count() == 6);
        let consumed = Results { produce: None, ack_us: None, timeline: Vec::new(), ..example() };
        assert!(!page(&[consumed]).contains("acknowledged"), "nothing was");
    }
}
