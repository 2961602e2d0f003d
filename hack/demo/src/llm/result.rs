//! The result of the demo with `--llm`: right answers, the upload ratio, and the checks. Pure.

use std::{fmt, time::Duration};

use llm_example::{client::Answer, questions::Question};
use neptune_api::JointInferenceServiceStatus;

use super::is_of_cloud;
use crate::summary::metric;

/// The goal in service.yaml.
const GOAL: f64 = 0.2;
/// The ratio may differ from the goal by this much after 200 questions: the first 50 are decided by
/// a fixed threshold, and every question is half a percent.
const TOLERANCE: f64 = 0.05;

/// What happened while the cloud was disconnected, and after it.
#[derive(Debug, Clone, Copy)]
pub struct Disconnection {
    /// Questions asked while it was disconnected.
    pub asked: usize,
    /// Number of those questions that the edge answered.
    pub answered: usize,
    /// The median time of these answers.
    pub median: Duration,
    /// Time until the cloud's next answer; `None` if there was none in time.
    pub until_upload: Option<Duration>,
}

/// All answers, and the status before the disconnection.
pub struct Result<'a> {
    pub questions: &'a [Question],
    /// Answers through the gateway, in the order of the questions.
    pub joint: &'a [Answer],
    /// Answers of the edge, for the questions that the cloud answered in `joint`.
    pub at_edge: &'a [Answer],
    /// Answers of the cloud to all questions.
    pub by_cloud: &'a [Answer],
    /// Number of samples that the status has to count.
    pub counted: usize,
    pub status: JointInferenceServiceStatus,
    pub disconnection: Disconnection,
}

/// The first question that this side answered, with the answer, in one line.
pub fn first_of<'a>(
    side: &str,
    mut answers: impl Iterator<Item = (&'a Question, &'a Answer)>,
) -> Option<String> {
    let (question, answer) =
        answers.find(|(_, answer)| answer.answered_by.as_deref() == Some(side))?;
    let text = answer.text.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(format!("        {side:5} {} {text}", question.question))
}

/// Right answers of each way.
struct Right {
    edge: usize,
    cloud: usize,
    joint: usize,
}

impl Result<'_> {
    /// Whether every check passed.
    pub fn passed(&self) -> bool {
        self.checks().iter().all(|(_, passed, _)| *passed)
    }

    fn uploaded(&self) -> usize {
        self.joint.iter().filter(|answer| is_of_cloud(answer)).count()
    }

    fn right(&self) -> Right {
        let mut at_edge = self.at_edge.iter();
        let (mut edge, mut cloud, mut joint) = (0, 0, 0);
        for ((question, answer), by_cloud) in
            self.questions.iter().zip(self.joint).zip(self.by_cloud)
        {
            let of_edge = if is_of_cloud(answer) { at_edge.next() } else { Some(answer) };
            let is_right = |answer: &Answer| usize::from(question.is_answered_by(&answer.text));
            edge += of_edge.map_or(0, is_right);
            cloud += is_right(by_cloud);
            joint += is_right(answer);
        }
        Right { edge, cloud, joint }
    }

    fn checks(&self) -> [(&'static str, bool, String); 5] {
        let Right { edge, cloud, joint } = self.right();
        let share = |number: usize| share(number, self.questions.len());
        let ratio = share(self.uploaded());
        // The same number of questions, chosen at random.
        let random = share(edge) + ratio * (share(cloud) - share(edge));
        let metric = |key| metric(&self.status.metrics, key);
        let (inferred, hard) = (metric("inferenceNumber"), metric("hardExampleNumber"));
        let expected = [self.counted, self.uploaded()].map(|number| number.to_string());
        let Disconnection { asked, answered, median, until_upload } = self.disconnection;
        [
            (
                "joint inference beats random uploads",
                share(joint) > random,
                format!("{} > {}", percent(share(joint)), percent(random)),
            ),
            (
                "the upload ratio is at its goal",
                (ratio - GOAL).abs() <= TOLERANCE,
                format!("{} for a goal of {}", percent(ratio), percent(GOAL)),
            ),
            (
                "service status matches the answers",
                [inferred, hard] == expected.each_ref().map(String::as_str),
                format!(
                    "inferenceNumber {inferred} = {}, hardExampleNumber {hard} = {}",
                    expected[0], expected[1]
                ),
            ),
            (
                "the edge answers without the cloud",
                answered == asked,
                format!("{answered} of {asked}, median {:.0} ms", median.as_secs_f64() * 1e3),
            ),
            (
                "the cloud answers after it is back",
                until_upload.is_some(),
                until_upload.map_or_else(String::new, |after| {
                    format!("after {:.1} s", after.as_secs_f64())
                }),
            ),
        ]
    }
}

#[expect(clippy::cast_precision_loss, reason = "some hundred questions")]
fn share(number: usize, total: usize) -> f64 {
    number as f64 / total.max(1) as f64
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

impl fmt::Display for Result<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Right { edge, cloud, joint } = self.right();
        let number = self.questions.len();
        let right = |right: usize| percent(share(right, number));
        let uploaded = percent(share(self.uploaded(), number));
        writeln!(f, "RESULT ({number} questions)                  RIGHT    UPLOADED")?;
        writeln!(f, "edge only (SmolLM2-135M, llama.cpp) {:>10} {:>11}", right(edge), "0.0 %")?;
        writeln!(f, "cloud only (a stand-in)             {:>10} {:>11}", right(cloud), "100.0 %")?;
        writeln!(f, "joint inference                     {:>10} {uploaded:>11}", right(joint))?;
        writeln!(f, "\nThe cloud is no model: it looks up 195 of the 200 answers.")?;
        write!(f, "\n{:46} {:6}  DETAIL", "CHECK", "RESULT")?;
        for (title, passed, detail) in self.checks() {
            let result = if passed { "passed" } else { "FAILED" };
            write!(f, "\n{title:46} {result:6}  {detail}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use neptune_api::KeyValue;

    use super::*;

    fn answer(text: &str, by: &str) -> Answer {
        let (text, answered_by) = (text.to_owned(), Some(by.to_owned()));
        Answer { text, answered_by, decision: None, took: Duration::ZERO }
    }

    #[test]
    fn example_of_a_side_is_its_first_answer_in_one_line() {
        let questions = ["1?", "2?", "3?"]
            .map(|question| Question { question: question.to_owned(), answers: Vec::new() });
        let answers = [answer("a", "edge"), answer("b\nc", "cloud"), answer("d", "cloud")];
        let first_of = |side| first_of(side, questions.iter().zip(&answers));
        assert_eq!(first_of("cloud").as_deref(), Some("        cloud 2? b c"));
        assert_eq!(first_of("device"), None);
    }

    #[test]
    fn answers_of_each_way_are_counted() {
        let question =
            |answer: &str| Question { question: String::new(), answers: vec![answer.to_owned()] };
        let questions: Vec<_> = ["a", "b", "c", "d", "e"].map(question).into();
        let joint = ["a", "b", "x", "d", "x"].map(|text| answer(text, "edge"));
        let mut joint: Vec<_> = joint.into();
        joint[1] = answer("b", "cloud");
        let by_cloud: Vec<_> = ["a", "b", "c", "d", "x"].map(|text| answer(text, "")).into();
        let metrics = ["inferenceNumber", "hardExampleNumber"];
        let metrics = metrics.into_iter().zip([6, 1]);
        let metrics = metrics.map(|(key, value)| KeyValue::new(key, value.to_string())).collect();
        let status = JointInferenceServiceStatus { metrics, ..Default::default() };
        let disconnection = Disconnection {
            asked: 1,
            answered: 1,
            median: Duration::ZERO,
            until_upload: Some(Duration::ZERO),
        };
        let at_edge = [answer("x", "edge")];
        let result = Result {
            questions: &questions,
            joint: &joint,
            at_edge: &at_edge,
            by_cloud: &by_cloud,
            counted: 6,
            status,
            disconnection,
        };
        let Right { edge, cloud, joint } = result.right();
        assert_eq!((edge, cloud, joint), (2, 4, 3));
        assert!(result.passed(), "{result}");
        let result = Result { counted: 7, ..result };
        assert!(!result.passed(), "the status lacks a sample");
        let disconnection = Disconnection { answered: 0, ..result.disconnection };
        let result = Result { counted: 6, disconnection, ..result };
        assert!(!result.passed(), "a question had no answer");
        let disconnection =
            Disconnection { answered: 1, until_upload: None, ..result.disconnection };
        assert!(!Result { disconnection, ..result }.passed(), "the cloud did not come back");
    }
}
