//! What a page looks like. Charts are drawn in colours that stand for something (see `chart`); here they get those of
//! the light and of the dark appearance.

pub(super) const CSS: &str = r##"
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--dim:#5b6470;--line:#d3d8df;--card:#f7f8fa;--warm:#eef0f3;
--good:#0a7a45;--bad:#c02626;--c0:#2563eb;--c1:#c2410c;--c2:#047857;--c3:#a21caf;--c4:#a16207;--c5:#0e7490}
@media(prefers-color-scheme:dark){:root{--back:#14171b;--text:#e6e9ed;--dim:#9aa4b0;--line:#3d4550;--card:#1c2026;
--warm:#22272e;--good:#4ade80;--bad:#f87171;--c0:#60a5fa;--c1:#fb923c;--c2:#34d399;--c3:#e879f9;--c4:#facc15;--c5:#22d3ee}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:24px 20px 48px;background:var(--back);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:24px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:16px;margin:0 0 4px}
.lead{color:var(--dim);margin:0 0 16px}
.verdict{margin:0 0 16px;font-weight:600}
.verdict span{margin-right:20px}
.good{color:var(--good)}.bad{color:var(--bad)}
.scroll{overflow-x:auto;margin:0 0 20px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
th{font-weight:600;color:var(--dim)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,520px),1fr));gap:16px;margin:0 0 24px}
figure{margin:0;padding:14px 16px 8px;background:var(--card);border:1px solid var(--line);border-radius:8px}
.legend{margin:0 0 4px;color:var(--dim);font-size:13px}
.legend span{margin-right:14px;white-space:nowrap}
.key{display:inline-block;width:18px;height:0;margin-right:6px;vertical-align:middle;border-top:3px solid}
.key.dashed{border-top-style:dashed}
.key.warm{height:12px;border:1px solid var(--line);background:var(--warm)}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}
svg{display:block;width:100%;height:auto}
svg text{font-family:inherit}
svg polyline{stroke-linejoin:round;stroke-linecap:round}
[stroke="#0A0000"],[stroke="#0A0200"]{stroke:var(--c0)}
[stroke="#0A0001"],[stroke="#0A0201"]{stroke:var(--c1)}
[stroke="#0A0002"],[stroke="#0A0202"]{stroke:var(--c2)}
[stroke="#0A0003"],[stroke="#0A0203"]{stroke:var(--c3)}
[stroke="#0A0004"],[stroke="#0A0204"]{stroke:var(--c4)}
[stroke="#0A0005"],[stroke="#0A0205"]{stroke:var(--c5)}
[stroke^="#0A02"]{stroke-dasharray:10 10}
[stroke="#0A0100"]{stroke:var(--line)}
[fill="#0A0101"]{fill:var(--dim)}
[fill="#0A0102"]{fill:var(--warm)}
details{margin:0 0 12px}
summary{cursor:pointer;font-weight:600}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px}
"##;

#[cfg(test)]
mod tests {
    use plotters::style::RGBColor;

    use super::super::chart::{GRID, TEXT, WARM_UP};
    use super::*;

    #[test]
    fn every_colour_of_a_chart_has_its_meaning() {
        for RGBColor(red, green, blue) in [GRID, TEXT, WARM_UP, RGBColor(10, 0, 5), RGBColor(10, 2, 5)] {
            assert!(CSS.contains(&format!("=\"#{red:02X}{green:02X}{blue:02X}\"]")), "{red} {green} {blue}");
        }
    }
}
