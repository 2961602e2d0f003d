//! The plot of a calibration: accuracy over the share of uploads, as SVG. Pure.
//!
//! One file without scripts and fonts of its own. Its colours follow the reader's light or dark
//! scheme.

use std::fmt::Write as _;

use super::summary::{Accuracy, Row, Summary};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 470.0;
/// The corners of the area of the curves.
const LEFT: f64 = 66.0;
const RIGHT: f64 = 736.0;
const TOP: f64 = 104.0;
const BOTTOM: f64 = 404.0;
/// The most points of a curve. More are not visible.
const MAX_POINTS: usize = 300;
/// About so many lines of the grid.
const GRID: f64 = 8.0;

/// Colours with enough contrast on their backgrounds. Readers without the media query get light.
const STYLE: &str = "\
text{font:13px system-ui,-apple-system,\"Segoe UI\",\"DejaVu Sans\",sans-serif;fill:#57606a}
.back{fill:#ffffff}.title{font-size:17px;font-weight:600;fill:#1f2328}.strong{fill:#1f2328;font-weight:600;paint-order:stroke;stroke:#ffffff;stroke-width:5px;stroke-linejoin:round}
.end{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:#d8dee4}.axis{stroke:#8c959f}
.joint{stroke:#0969da;stroke-width:2.5;fill:none}.band{fill:#0969da;opacity:.14}.dot{fill:#0969da;stroke:#ffffff;stroke-width:2}
.random{stroke:#bc4c00;stroke-width:2;stroke-dasharray:7 5;fill:none}
.edge{stroke:#6e7781;stroke-width:1.5;stroke-dasharray:2 4}.cloud{stroke:#1a7f37;stroke-width:1.5;stroke-dasharray:2 4}
@media (prefers-color-scheme:dark){
text{fill:#9198a1}.back{fill:#0d1117}.title,.strong{fill:#f0f6fc}.strong{stroke:#0d1117}.grid{stroke:#262c36}.axis{stroke:#656c76}
.joint{stroke:#58a6ff}.band{fill:#58a6ff;opacity:.2}.dot{fill:#58a6ff;stroke:#0d1117}
.random{stroke:#f0883e}.edge{stroke:#9198a1}.cloud{stroke:#3fb950}}
";

/// Maps an accuracy or a share of uploads to a position in the picture.
struct Scale {
    low: f64,
    high: f64,
    step: f64,
}

impl Scale {
    /// A scale of accuracies with even steps, for all values of a summary.
    fn from_summary(summary: &Summary) -> Self {
        let values = summary.curve.iter().map(|row| row.joint).chain([summary.edge, summary.cloud]);
        let (low, high) = values
            .fold((1.0_f64, 0.0_f64), |(low, high), Accuracy { low: from, high: to, .. }| {
                (low.min(from), high.max(to))
            });
        let range = (high - low).max(0.02);
        let steps = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2];
        let step = steps.into_iter().find(|step| range / step <= GRID).unwrap_or(0.2);
        let high = ((high / step).ceil() * step).min(1.0);
        Self { low: ((low / step).floor() * step).max(0.0), high, step }
    }

    fn x(ratio: f64) -> f64 {
        LEFT + ratio * (RIGHT - LEFT)
    }

    fn y(&self, accuracy: f64) -> f64 {
        BOTTOM - (accuracy - self.low) / (self.high - self.low) * (BOTTOM - TOP)
    }
}

/// The plot as a file.
pub fn svg(summary: &Summary) -> String {
    let scale = Scale::from_summary(summary);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\">\n\
         <title>{0}: correct answers by share of uploaded samples</title>\n\
         <desc>{1}</desc>\n<style>\n{STYLE}</style>\n\
         <rect class=\"back\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\"/>\n",
        escaped(&summary.service),
        escaped(&described(summary)),
    );
    text(
        &mut svg,
        (LEFT, 32.0),
        "title",
        &format!("{}: correct answers by share of uploads", summary.service),
    );
    let samples = format!(
        "{} labelled samples, {}; the band is the 95 % interval",
        summary.samples, summary.signal
    );
    text(&mut svg, (LEFT, 53.0), "", &samples);
    legend(&mut svg);
    grid(&mut svg, &scale);
    levels(&mut svg, &scale, summary);
    curves(&mut svg, &scale, summary);
    marker(&mut svg, &scale, &summary.for_upload_ratio.row);
    if let Some(certain) = summary.for_accuracy.and_then(|target| target.certain) {
        marker(&mut svg, &scale, &certain);
    }
    svg += "</svg>\n";
    svg
}

/// Returns a description for readers who do not see the picture.
fn described(summary: &Summary) -> String {
    let Row { upload_ratio, joint, random, .. } = summary.for_upload_ratio.row;
    format!(
        "Edge only {}, cloud only {}. With {} of the samples uploaded, {} of the answers are correct, and {} if random samples are uploaded.",
        percent(summary.edge.value),
        percent(summary.cloud.value),
        percent(upload_ratio),
        percent(joint.value),
        percent(random),
    )
}

fn legend(svg: &mut String) {
    let y = 80.0;
    let mut x = LEFT;
    for (class, name, width) in [
        ("joint", "the least confident samples uploaded", 300.0),
        ("random", "random samples uploaded (expected)", 0.0),
    ] {
        line(svg, class, (x, y), (x + 30.0, y));
        text(svg, (x + 37.0, y + 4.5), "", name);
        x += width;
    }
}

fn grid(svg: &mut String, scale: &Scale) {
    let mut index = 0_u32;
    loop {
        let accuracy = scale.low + f64::from(index) * scale.step;
        if accuracy > scale.high + 1e-9 {
            break;
        }
        let y = scale.y(accuracy);
        line(svg, "grid", (LEFT, y), (RIGHT, y));
        let digits = usize::from(scale.step < 0.01);
        text(svg, (LEFT - 9.0, y + 4.5), "end", &format!("{:.digits$}", accuracy * 100.0));
        index += 1;
    }
    for tenth in 0..=10 {
        let x = Scale::x(f64::from(tenth) / 10.0);
        line(svg, "axis", (x, BOTTOM), (x, BOTTOM + 5.0));
        text(svg, (x, BOTTOM + 21.0), "middle", &(tenth * 10).to_string());
    }
    line(svg, "axis", (LEFT, BOTTOM), (RIGHT, BOTTOM));
    text(
        svg,
        (f64::midpoint(LEFT, RIGHT), BOTTOM + 46.0),
        "middle",
        "samples uploaded to the cloud (%)",
    );
    let middle = f64::midpoint(TOP, BOTTOM);
    let _ = writeln!(
        svg,
        "<text class=\"middle\" transform=\"translate(20 {middle:.1}) rotate(-90)\">correct answers (%)</text>"
    );
}

/// The accuracies of both models alone.
fn levels(svg: &mut String, scale: &Scale, summary: &Summary) {
    for (class, accuracy, above) in [("edge", summary.edge, 17.0), ("cloud", summary.cloud, -7.0)] {
        let y = scale.y(accuracy.value);
        line(svg, class, (LEFT, y), (RIGHT, y));
        let place = if class == "edge" { (RIGHT - 6.0, "end") } else { (LEFT + 6.0, "") };
        text(
            svg,
            (place.0, y + above),
            place.1,
            &format!("{class} only {}", percent(accuracy.value)),
        );
    }
}

fn curves(svg: &mut String, scale: &Scale, summary: &Summary) {
    let step = summary.curve.len().div_ceil(MAX_POINTS).max(1);
    let last = summary.curve.len().saturating_sub(1);
    let rows: Vec<&Row> = (0..)
        .zip(&summary.curve)
        .filter(|(index, _)| index % step == 0 || *index == last)
        .map(|(_, row)| row)
        .collect();
    let place =
        |row: &Row, value| format!("{:.1},{:.1}", Scale::x(row.upload_ratio), scale.y(value));
    let upper = rows.iter().map(|row| place(row, row.joint.high));
    let lower = rows.iter().rev().map(|row| place(row, row.joint.low));
    let band: Vec<String> = upper.chain(lower).collect();
    let joint: Vec<String> = rows.iter().map(|row| place(row, row.joint.value)).collect();
    let _ = writeln!(svg, "<polygon class=\"band\" points=\"{}\"/>", band.join(" "));
    let (from, to) = (scale.y(summary.edge.value), scale.y(summary.cloud.value));
    line(svg, "random", (Scale::x(0.0), from), (Scale::x(1.0), to));
    let _ = writeln!(svg, "<polyline class=\"joint\" points=\"{}\"/>", joint.join(" "));
}

/// Draws a recommended threshold as a dot with a label.
fn marker(svg: &mut String, scale: &Scale, row: &Row) {
    let (x, y) = (Scale::x(row.upload_ratio), scale.y(row.joint.value));
    let _ = writeln!(svg, "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\"/>");
    let class = if x > 500.0 { "strong end" } else { "strong" };
    let place = if x > 500.0 { (x - 10.0, y + 24.0) } else { (x + 10.0, y + 24.0) };
    let label = format!(
        "{} uploaded: {}, threshold {}",
        percent(row.upload_ratio),
        percent(row.joint.value),
        row.threshold
    );
    text(svg, place, class, &label);
}

fn line(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), class: &str, content: &str) {
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
        escaped(content)
    );
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
