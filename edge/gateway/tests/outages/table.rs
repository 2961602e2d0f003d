//! What is judged: no failed request, the latency of easy samples, the time to the first upload,
//! and the cap. Prints a line per kind of outage.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    time::{Duration, Instant},
};

use crate::{
    load::{Answered, CLIENTS, Sample},
    proxy::Fault,
    rig::{MAX_RATIO, Outage, Sizes},
};

/// Uploads that the cap permits beyond its ratio.
const BURST: f64 = 50.0;
/// Allowance for the noise of a busy machine, below every timeout of the cloud.
const ROOM: Duration = Duration::from_millis(250);

/// The result of one kind.
struct Line {
    fault: Fault,
    outages: usize,
    requests: usize,
    failed: usize,
    cut: usize,
    at_edge: usize,
    before: Vec<Duration>,
    during: Vec<Duration>,
    /// The slowest return: its time, and the allowed time.
    first_upload: (Duration, Duration),
    late: usize,
}

/// The table, and the claims that are not true.
pub struct Judgement {
    pub table: String,
    pub problems: Vec<String>,
}

/// Judges a run. `uploaded`: the requests that reached the cloud. `may_cut`: whether streams are
/// passed on before they end.
pub fn judge(
    outages: &[Outage],
    samples: &[Sample],
    uploaded: &BTreeSet<usize>,
    sizes: &Sizes,
    may_cut: bool,
) -> Judgement {
    let kinds: BTreeSet<Fault> = outages.iter().map(|outage| outage.fault).collect();
    let mut table = format!(
        "{:<20} {:>7} {:>8} {:>6} {:>4} {:>7} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}\n",
        "outage",
        "number",
        "requests",
        "failed",
        "cut",
        "at edge",
        "p50 before",
        "p50 ratio",
        "p99 before",
        "p99 ratio",
        "upload",
        "allowed"
    );
    let mut problems = Vec::new();
    let mut all: Option<Line> = None;
    for fault in kinds {
        let line = line(fault, outages, samples);
        line.write(&mut table);
        line.check(sizes, may_cut, &mut problems);
        match &mut all {
            None => all = Some(line),
            Some(all) => all.add(line),
        }
    }
    if let Some(all) = all {
        let mut text = String::new();
        all.write(&mut text);
        let _ = write!(table, "{:<20}{}", "all", &text[20..]);
        let ratio = |quantile| ratio(&all.before, &all.during, quantile);
        if sizes.is_long() && (ratio(0.5) > 1.25 || ratio(0.99) > 1.5) {
            problems.push(format!(
                "easy samples became slower: p50 {:.2}, p99 {:.2} times",
                ratio(0.5),
                ratio(0.99)
            ));
        }
    }
    let outside = samples.iter().filter(|sample| sample.answered == Answered::Failed).count();
    if outside > 0 {
        problems.push(format!("{outside} of {} requests failed", samples.len()));
    }
    let (worst, share) = worst_window(samples, uploaded);
    let _ = writeln!(
        table,
        "{} requests, {outside} failed; uploaded {share:.4}; worst window: {worst:.1} uploads above \
         {MAX_RATIO} per sample, {BURST} permitted",
        samples.len()
    );
    if worst > BURST {
        problems.push(format!("a window has {worst:.1} uploads above the ratio"));
    }
    Judgement { table, problems }
}

fn line(fault: Fault, outages: &[Outage], samples: &[Sample]) -> Line {
    let mut line = Line {
        fault,
        outages: 0,
        requests: 0,
        failed: 0,
        cut: 0,
        at_edge: 0,
        before: Vec::new(),
        during: Vec::new(),
        first_upload: (Duration::ZERO, Duration::ZERO),
        late: 0,
    };
    for outage in outages.iter().filter(|outage| outage.fault == fault) {
        line.outages += 1;
        let took = outage.first_upload - outage.end;
        if took >= line.first_upload.0 {
            line.first_upload = (took, outage.allowed - outage.end);
        }
        line.late += usize::from(outage.first_upload > outage.allowed) + outage.late_pauses;
        let within = |from: Instant, to: Instant| {
            samples.iter().filter(move |it| it.begin < to && it.end >= from)
        };
        let easy = |from, to| {
            let easy = within(from, to).filter(move |it| {
                it.answered == Answered::Easy && it.begin >= from && it.end <= to
            });
            easy.map(|sample| sample.end - sample.begin)
        };
        line.before.extend(easy(outage.before, outage.begin));
        line.during.extend(easy(outage.begin, outage.end));
        for sample in within(outage.begin, outage.first_upload) {
            line.requests += 1;
            line.failed += usize::from(sample.answered == Answered::Failed);
            line.cut += usize::from(sample.answered == Answered::CutStream);
            line.at_edge += usize::from(sample.answered == Answered::Edge);
        }
    }
    line
}

impl Line {
    fn add(&mut self, other: Self) {
        self.outages += other.outages;
        self.requests += other.requests;
        self.failed += other.failed;
        self.cut += other.cut;
        self.at_edge += other.at_edge;
        self.before.extend(other.before);
        self.during.extend(other.during);
        self.first_upload = self.first_upload.max(other.first_upload);
        self.late += other.late;
    }

    fn write(&self, table: &mut String) {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let _ = writeln!(
            table,
            "{:<20} {:>7} {:>8} {:>6} {:>4} {:>7} {:>7.2} ms {:>9.2} {:>7.2} ms {:>9.2} {:>6.2} s {:>6.2} s",
            self.fault.name(),
            self.outages,
            self.requests,
            self.failed,
            self.cut,
            self.at_edge,
            millis(quantile(&self.before, 0.5)),
            ratio(&self.before, &self.during, 0.5),
            millis(quantile(&self.before, 0.99)),
            ratio(&self.before, &self.during, 0.99),
            self.first_upload.0.as_secs_f64(),
            self.first_upload.1.as_secs_f64(),
        );
    }

    fn check(&self, sizes: &Sizes, may_cut: bool, problems: &mut Vec<String>) {
        let name = self.fault.name();
        if self.at_edge == 0 && self.cut == 0 {
            problems.push(format!("{name}: no hard sample was sent"));
        }
        if self.late > 0 {
            problems.push(format!(
                "{name}: the first upload came after {:?} instead of {:?}",
                self.first_upload.0, self.first_upload.1
            ));
        }
        // After its first event a stream is not switched. At the begin some are in flight; when all
        // break, the breaker opens after three, and each pause ends with one more.
        let broken = if self.fault == Fault::ResetMidStream { 3 + sizes.probes() } else { 0 };
        let permitted = if may_cut { self.outages * (CLIENTS + broken) } else { 0 };
        if self.cut > permitted {
            problems.push(format!("{name}: {} streams were cut, {permitted} permitted", self.cut));
        }
        if self.before.is_empty() || self.during.len() < 10 {
            let counts = (self.before.len(), self.during.len());
            problems.push(format!("{name}: too few easy samples to compare: {counts:?}"));
        }
        // A sample that waits for the cloud waits for a timeout.
        let (p90, bound) = (quantile(&self.during, 0.9), quantile(&self.before, 0.9) + ROOM);
        if p90 > bound {
            problems.push(format!("{name}: easy samples waited: p90 {p90:?} above {bound:?}"));
        }
    }
}

impl Sizes {
    /// The most pauses that end within an outage: 1 s, 2 s, 4 s, 20 % shorter.
    fn probes(&self) -> usize {
        let (mut pause, mut at, mut probes) = (0.8, 0.0, 0);
        while at < self.outage.1.as_secs_f64() {
            at += pause;
            pause *= 2.0;
            probes += 1;
        }
        probes
    }
}

fn quantile(times: &[Duration], rank: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "an index"
    )]
    let index = (sorted.len() as f64 * rank) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

fn ratio(before: &[Duration], during: &[Duration], rank: f64) -> f64 {
    quantile(during, rank).as_secs_f64() / quantile(before, rank).as_secs_f64().max(1e-9)
}

/// The most uploads above the ratio in any window of consecutive samples, and the share of all.
fn worst_window(samples: &[Sample], uploaded: &BTreeSet<usize>) -> (f64, f64) {
    let mut ordered: Vec<&Sample> = samples.iter().collect();
    ordered.sort_unstable_by_key(|sample| sample.number);
    let (mut here, mut worst, mut all) = (0.0_f64, 0.0_f64, 0.0);
    for sample in &ordered {
        let is_upload = sample.answered == Answered::Cloud || uploaded.contains(&sample.number);
        let upload = f64::from(u8::from(is_upload));
        all += upload;
        here = (here + upload - MAX_RATIO).max(0.0);
        worst = worst.max(here);
    }
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let share = all / ordered.len().max(1) as f64;
    (worst, share)
}
