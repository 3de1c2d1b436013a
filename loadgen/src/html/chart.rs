//! One chart: lines over time or over percentiles, drawn by plotters in colours that are names only. The page's style says
//! what they look like in light and in dark.

use std::fmt::Write;
use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;

use super::escape;

/// Twice the size at which a page shows it: coordinates are whole numbers.
const SIZE: (u32, u32) = (1120, 560);
/// Lines beyond these begin with the first colour again.
const COLOURS: usize = 6;
/// Points of a line: more than there are pixels say nothing more. Each stretch keeps its highest.
const POINTS_MAX: usize = 700;

/// What an axis measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Seconds, from 0.
    Time,
    /// Messages for one that is beyond the percentile; logarithmic.
    Percentile,
    /// Microseconds; logarithmic.
    Latency,
    /// Messages a second, from 0.
    Rate,
}

/// A line with its name.
pub(super) struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    dashed: bool,
}

impl Series {
    pub(super) fn line(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points: thinned(points), dashed: false }
    }

    pub(super) fn dashed(self) -> Self {
        Self { dashed: true, ..self }
    }
}

/// A chart.
pub(super) struct Chart {
    title: String,
    x: Scale,
    y: Scale,
    series: Vec<Series>,
    warm_up_s: f64,
}

/// An axis: its ends and its marks, in the chart's own coordinates.
#[derive(Debug, Clone)]
struct Axis {
    begin: f64,
    end: f64,
    marks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        first + ((value - self.begin) / (self.end - self.begin) * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.marks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.begin..self.end
    }
}

/// What has a colour beside the lines: see the style for what these stand for.
pub(super) const GRID: RGBColor = RGBColor(10, 1, 0);
pub(super) const TEXT: RGBColor = RGBColor(10, 1, 1);
pub(super) const WARM_UP: RGBColor = RGBColor(10, 1, 2);

fn colour(number: usize, dashed: bool) -> RGBColor {
    RGBColor(10, if dashed { 2 } else { 0 }, (number % COLOURS) as u8)
}

impl Chart {
    pub(super) fn new(title: &str, x: Scale, y: Scale, series: Vec<Series>) -> Self {
        Self { title: title.to_owned(), x, y, series, warm_up_s: 0.0 }
    }

    /// Shades the time before this.
    pub(super) fn with_warm_up(self, warm_up_s: f64) -> Self {
        Self { warm_up_s, ..self }
    }

    /// Whether any line has two points.
    pub(super) fn shows_something(&self) -> bool {
        self.series.iter().any(|series| series.points.len() > 1)
    }

    /// The chart with its title and what its lines are.
    pub(super) fn to_figure(&self) -> String {
        let mut figure = format!("<figure>\n<h2>{}</h2>\n<p class=\"legend\">", escape(&self.title));
        for (number, series) in self.series.iter().enumerate().filter(|(_, series)| !series.points.is_empty()) {
            let dashed = if series.dashed { " dashed" } else { "" };
            let class = format!("key c{}{dashed}", number % COLOURS);
            let _ = write!(figure, "<span><i class=\"{class}\"></i>{}</span> ", escape(&series.name));
        }
        if self.warm_up_s > 0.0 {
            figure += "<span><i class=\"key warm\"></i>warm-up, not counted</span>";
        }
        let svg = self.to_svg();
        // The page decides on the size.
        let size = format!("width=\"{}\" height=\"{}\" ", SIZE.0, SIZE.1);
        let _ = write!(figure, "</p>\n{}</figure>\n", svg.replacen(&size, "", 1));
        figure
    }

    fn to_svg(&self) -> String {
        let mut svg = String::new();
        self.draw(&mut svg).expect("drawing into memory does not fail");
        svg
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let (x, y) = (self.x.axis(points().map(|point| point.0)), self.y.axis(points().map(|point| point.1)));
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin_top(16)
            .margin_right(72)
            .x_label_area_size(84)
            .y_label_area_size(116)
            .build_cartesian_2d(x.clone(), y.clone())?;
        if self.warm_up_s > 0.0 {
            let corners = [(x.begin, y.begin), (self.warm_up_s.min(x.end), y.end)];
            chart.draw_series([Rectangle::new(corners, WARM_UP.filled())])?;
        }
        let text = ("sans-serif", 33).into_font().color(&TEXT);
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(GRID)
            .label_style(text.clone())
            .axis_desc_style(text)
            .x_label_formatter(&|mark| self.x.label(*mark))
            .y_label_formatter(&|mark| self.y.label(*mark))
            .x_labels(x.marks.len())
            .y_labels(y.marks.len())
            .x_desc(self.x.title())
            .draw()?;
        for (number, series) in self.series.iter().enumerate() {
            let line = series.points.iter().map(|(x, y)| (self.x.place(*x), self.y.place(*y)));
            let style = colour(number, series.dashed).stroke_width(3);
            chart.draw_series(LineSeries::new(line, style))?;
        }
        area.present()?;
        Ok(())
    }
}

impl Scale {
    /// Where a value lies on the axis.
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Time | Self::Rate => value,
            Self::Percentile | Self::Latency => value.max(1.0).log10(),
        }
    }

    fn axis(self, values: impl Iterator<Item = f64>) -> Axis {
        let (low, high) = values
            .map(|value| self.place(value))
            .fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        let low = low.min(high);
        match self {
            Self::Time => {
                let end = if high > 0.0 { high } else { 1.0 };
                Axis { begin: 0.0, end, marks: even_marks(end) }
            }
            Self::Rate => {
                let end = if high > 0.0 { high * 1.05 } else { 1.0 };
                Axis { begin: 0.0, end, marks: even_marks(end) }
            }
            // 50 %, and then each nine.
            Self::Percentile => {
                let nines = (1..=(high + 1e-6).floor() as i32).map(f64::from);
                let marks = std::iter::once(2_f64.log10()).chain(nines).collect();
                Axis { begin: 0.0, end: high.max(1.0), marks }
            }
            Self::Latency => {
                let (begin, end) = ((low - 0.05).max(0.0), (high + 0.05).max(low + 0.3));
                // All of 1, 2 and 5 where there is room for them.
                let digits: &[f64] = if end - begin < 3.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let decades = (begin.floor() as i32)..=(end.ceil() as i32);
                let marks =
                    decades.flat_map(|decade| digits.iter().map(move |digit| digit.log10() + f64::from(decade)));
                Axis { begin, end, marks: marks.filter(|mark| (begin..=end).contains(mark)).collect() }
            }
        }
    }

    fn label(self, mark: f64) -> String {
        match self {
            Self::Time => number(mark),
            Self::Rate => match mark {
                mark if mark >= 1e6 => format!("{}M", number(mark / 1e6)),
                mark if mark >= 1e3 => format!("{}k", number(mark / 1e3)),
                mark => number(mark),
            },
            Self::Percentile if mark < 1.0 => "50%".to_owned(),
            Self::Percentile => {
                let nines = mark.round() as usize;
                let behind_point = if nines > 2 { format!(".{}", "9".repeat(nines - 2)) } else { String::new() };
                format!("{}{behind_point}%", if nines == 1 { "90" } else { "99" })
            }
            Self::Latency => match 10_f64.powf(mark) {
                latency_us if latency_us >= 0.995e6 => format!("{} s", number(latency_us / 1e6)),
                latency_us if latency_us >= 995.0 => format!("{} ms", number(latency_us / 1e3)),
                latency_us => format!("{} us", number(latency_us)),
            },
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Time => "seconds",
            Self::Percentile => "percentile",
            Self::Latency => "latency",
            Self::Rate => "messages a second",
        }
    }
}

/// Marks at 1, 2 or 5 times a power of ten, about six of them.
fn even_marks(end: f64) -> Vec<f64> {
    let rough = end / 6.0;
    let decade = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * decade).find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    (0..=(end / step) as u32).map(|number| f64::from(number) * step).collect()
}

/// A few digits, without zeros at the end.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The highest point of each stretch, when there are too many.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if points.len() <= POINTS_MAX {
        return points;
    }
    let highest = |stretch: &[(f64, f64)]| stretch.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
    points.chunks(points.len().div_ceil(POINTS_MAX)).filter_map(highest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_named_as_people_do() {
        let labels = |scale: Scale, values: &[f64]| -> Vec<String> {
            scale.axis(values.iter().copied()).marks.iter().map(|mark| scale.label(*mark)).collect()
        };
        assert_eq!(labels(Scale::Time, &[0.0, 30.0]), ["0", "5", "10", "15", "20", "25", "30"]);
        assert_eq!(labels(Scale::Rate, &[1_400_000.0]), ["0", "500k", "1M"]);
        assert_eq!(labels(Scale::Percentile, &[1.0, 1_000.0]), ["50%", "90%", "99%", "99.9%"]);
        assert_eq!(labels(Scale::Latency, &[300.0, 2_500.0]), ["500 us", "1 ms", "2 ms"]);
        assert_eq!(labels(Scale::Latency, &[90.0, 2e6]), ["100 us", "1 ms", "10 ms", "100 ms", "1 s"]);
    }

    #[test]
    fn any_values_make_a_chart() {
        for points in [vec![], vec![(0.0, 0.0)], vec![(1.0, 5.0), (1.0, 5.0)], vec![(0.0, 0.0), (0.0, 0.0)]] {
            for (x, y) in
                [(Scale::Time, Scale::Rate), (Scale::Percentile, Scale::Latency), (Scale::Time, Scale::Latency)]
            {
                let chart = Chart::new("a", x, y, vec![Series::line("b", points.clone())]);
                assert!(chart.to_svg().contains("</svg>"));
            }
        }
    }

    #[test]
    fn a_long_time_line_keeps_its_peaks() {
        let mut points: Vec<_> = (0..100_000).map(|at| (f64::from(at), 1.0)).collect();
        points[54_321].1 = 9.0;
        let thinned = thinned(points);
        assert!(thinned.len() <= POINTS_MAX && thinned.contains(&(54_321.0, 9.0)));
    }
}
