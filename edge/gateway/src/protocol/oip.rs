//! Open Inference Protocol, version 2, as JSON: confidences, and batches split by row.

use neptune_cascade::rows::{Rows, RowsError, Selection, batch_size};
use serde_json::value::RawValue;

use super::{
    batch::MergeError,
    json::{self, Object},
    numbers,
    scores::{Row, Scores},
};

/// The body of `infer`.
#[derive(Debug)]
pub struct Request<'a> {
    object: Object<'a>,
    inputs: Vec<Object<'a>>,
    rows: usize,
    /// The output with the scores, if the client did not ask for it among others.
    added: Option<String>,
}

impl<'a> Request<'a> {
    /// Reads a request. `None` if it is none that can be split: the model server judges it.
    ///
    /// # Errors
    /// The inputs have different numbers of rows.
    pub fn parse(body: &'a [u8], output: Option<&str>) -> Result<Option<Self>, RowsError> {
        let Ok(object) = Object::parse(body) else { return Ok(None) };
        let inputs = object
            .original("inputs")
            .and_then(|inputs| serde_json::from_str::<Vec<Object<'a>>>(inputs.get()).ok());
        let Some(inputs) = inputs else { return Ok(None) };
        let shapes: Option<Vec<(String, Vec<i64>)>> =
            inputs.iter().map(|input| Some((input.get("name")?, input.get("shape")?))).collect();
        let Some(shapes) = shapes else { return Ok(None) };
        let rows = batch_size(shapes.iter().map(|(name, shape)| (&**name, &**shape)));
        let rows = match rows {
            Ok(rows) => rows,
            Err(error @ RowsError::Unequal { .. }) => return Err(error),
            Err(_) => return Ok(None),
        };
        let asked: Vec<Object<'_>> = object.get("outputs").unwrap_or_default();
        let asks_for =
            |name| asked.iter().any(|output| output.get::<String>("name").as_deref() == Some(name));
        let added = output.filter(|name| !asked.is_empty() && !asks_for(name)).map(str::to_owned);
        Ok(Some(Self { object, inputs, rows, added }))
    }

    /// The number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// The body for the edge, if it differs from the client's: the output with the scores is asked
    /// for as well.
    pub fn edge_body(&self) -> Option<Vec<u8>> {
        let added = self.added.as_ref()?;
        let mut object = self.object.clone();
        let mut asked: Vec<Object<'_>> = self.object.get("outputs").unwrap_or_default();
        let mut output = Object::default();
        output.put("name", added);
        asked.push(output);
        object.put("outputs", &asked);
        Some(object.to_vec())
    }

    /// The body for the cloud, with the selected rows.
    ///
    /// # Errors
    /// The data of an input do not fit its shape.
    pub fn cloud_body(&self, selection: &Selection) -> Result<Vec<u8>, RowsError> {
        let mut object = self.object.clone();
        let mut inputs = self.inputs.clone();
        for input in &mut inputs {
            let shape: Vec<i64> = input.get("shape").unwrap_or_default();
            let list = input.original("data").and_then(numbers::elements).unwrap_or_default();
            let rows = rows_of(list.len(), &shape)?;
            let selected = rows.select(&list, selection)?;
            input.set("data", json::list(selected));
            input.put("shape", &selection.shape(&shape));
        }
        object.put("inputs", &inputs);
        if let Some(body) =
            (Self { object: object.clone(), inputs: vec![], rows: 0, added: self.added.clone() })
                .edge_body()
        {
            return Ok(body);
        }
        Ok(object.to_vec())
    }

    /// The scores of an answer to this request, in the named output or the first that fits.
    pub fn scores(&self, answer: &Object<'_>, output: Option<&str>, rows: usize) -> Scores {
        let outputs: Vec<Object<'_>> = answer.get("outputs").unwrap_or_default();
        let found = outputs.iter().find(|candidate| match output {
            Some(name) => candidate.get::<String>("name").as_deref() == Some(name),
            None => fits(candidate),
        });
        found.and_then(|output| scores(output, rows)).unwrap_or_else(|| Scores::missing(rows))
    }

    /// The answer without the output that only the gateway asked for; `None` if nothing changes.
    pub fn stripped(&self, answer: &Object<'_>) -> Option<Vec<u8>> {
        let added = self.added.as_deref()?;
        let mut outputs: Vec<Object<'_>> = answer.get("outputs")?;
        outputs.retain(|output| output.get::<String>("name").as_deref() != Some(added));
        let mut stripped = answer.clone();
        stripped.put("outputs", &outputs);
        Some(stripped.to_vec())
    }

    /// The edge's answer with the selected rows of the cloud's, and who answered each row.
    ///
    /// # Errors
    /// The outputs cannot be mixed.
    pub fn merge(
        &self,
        edge: &Object<'_>,
        cloud: &Object<'_>,
        selection: &Selection,
        answered_by: &str,
    ) -> Result<Vec<u8>, MergeError> {
        let edge_outputs: Vec<Object<'_>> =
            edge.get("outputs").ok_or(MergeError::Unreadable("edge"))?;
        let cloud_outputs: Vec<Object<'_>> =
            cloud.get("outputs").ok_or(MergeError::Unreadable("cloud"))?;
        let differ = || MergeError::Outputs {
            edge: described(&edge_outputs),
            cloud: described(&cloud_outputs),
        };
        if edge_outputs.len() != cloud_outputs.len() {
            return Err(differ());
        }
        let mut merged = edge_outputs.clone();
        for output in &mut merged {
            let name = output.get::<String>("name");
            let other = cloud_outputs.iter().find(|other| other.get::<String>("name") == name);
            let other = other.ok_or_else(differ)?;
            let data = merge_output(output, other, selection).ok_or_else(differ)??;
            output.set("data", data);
        }
        let mut answer = edge.clone();
        answer.put("outputs", &merged);
        let mut parameters: Object<'_> = edge.get("parameters").unwrap_or_default();
        parameters.put("neptune_answered_by", answered_by);
        answer.put("parameters", &parameters);
        let bytes = answer.to_vec();
        if self.added.is_none() {
            return Ok(bytes);
        }
        let whole = Object::parse(&bytes).map_err(|_| MergeError::Unreadable("edge"))?;
        Ok(self.stripped(&whole).unwrap_or_else(|| bytes.clone()))
    }
}

/// Why the outputs of two models cannot be mixed, from their metadata; `None` if they can, or if the
/// metadata do not show it. A dimension of -1 fits any other.
pub fn difference(edge: &Object<'_>, cloud: &Object<'_>) -> Option<MergeError> {
    let edge: Vec<Object<'_>> = edge.get("outputs")?;
    let cloud: Vec<Object<'_>> = cloud.get("outputs")?;
    let text = |output: &Object<'_>, name| output.get::<String>(name);
    let are_alike = |one: &Object<'_>, other: &Object<'_>| {
        let shapes = (one.get::<Vec<i64>>("shape"), other.get::<Vec<i64>>("shape"));
        let (Some(one_shape), Some(other_shape)) = shapes else { return true };
        let fit = |(a, b): (&i64, &i64)| a == b || *a < 0 || *b < 0;
        text(one, "name") == text(other, "name")
            && text(one, "datatype") == text(other, "datatype")
            && one_shape.len() == other_shape.len()
            && one_shape.iter().zip(&other_shape).skip(1).all(fit)
    };
    let is_found = |output| cloud.iter().any(|other| are_alike(output, other));
    if edge.len() == cloud.len() && edge.iter().all(is_found) {
        return None;
    }
    Some(MergeError::Outputs { edge: described(&edge), cloud: described(&cloud) })
}

/// The version of the model in an answer.
pub fn version(answer: &Object<'_>) -> Option<String> {
    answer.get::<String>("model_version").filter(|version| !version.is_empty())
}

/// The rows of a list, flat or with one element per row.
fn rows_of(len: usize, shape: &[i64]) -> Result<Rows, RowsError> {
    match (Rows::flat(len, shape), shape.first()) {
        (Err(_), Some(rows)) if usize::try_from(*rows) == Ok(len) => Ok(Rows::nested(len)),
        (rows, _) => rows,
    }
}

/// Whether an output can have the scores of classes: numbers, at least two per row.
fn fits(output: &Object<'_>) -> bool {
    let is_float = output
        .get::<String>("datatype")
        .is_some_and(|datatype| matches!(&*datatype, "FP16" | "BF16" | "FP32" | "FP64"));
    let shape: Vec<i64> = output.get("shape").unwrap_or_default();
    is_float && shape.len() > 1 && shape.iter().skip(1).product::<i64>() > 1
}

fn scores(output: &Object<'_>, rows: usize) -> Option<Scores> {
    let shape: Vec<i64> = output.get("shape")?;
    if usize::try_from(*shape.first()?) != Ok(rows) || rows == 0 {
        return None;
    }
    let numbers = numbers::flat(output.raw("data")?)?;
    let width = usize::try_from(*shape.last()?).ok()?;
    let per_row = numbers.len() / rows;
    if per_row * rows != numbers.len() {
        return None;
    }
    let row = |row: usize| Row { numbers: numbers[row * per_row..][..per_row].to_vec(), width };
    Some(Scores::new((0..rows).map(|index| Some(row(index))).collect()))
}

/// `None` if the outputs have different types or dimensions.
fn merge_output(
    edge: &Object<'_>,
    cloud: &Object<'_>,
    selection: &Selection,
) -> Option<Result<Box<RawValue>, RowsError>> {
    if edge.get::<String>("datatype") != cloud.get::<String>("datatype") {
        return None;
    }
    let edge_shape: Vec<i64> = edge.get("shape")?;
    let cloud_shape: Vec<i64> = cloud.get("shape")?;
    if edge_shape.get(1..)? != cloud_shape.get(1..)? {
        return None;
    }
    let (edge_data, cloud_data) = (edge.raw("data")?, cloud.raw("data")?);
    let mut lists = [numbers::elements(edge_data)?, numbers::elements(cloud_data)?];
    let is_nested =
        |list: &[&RawValue]| list.first().is_some_and(|value| value.get().starts_with('['));
    if is_nested(&lists[0]) != is_nested(&lists[1]) {
        lists = [numbers::leaves(edge_data), numbers::leaves(cloud_data)];
    }
    let [edge_list, cloud_list] = lists;
    let merged = || {
        let edge_rows = rows_of(edge_list.len(), &edge_shape)?;
        let cloud_rows = rows_of(cloud_list.len(), &cloud_shape)?;
        edge_rows.merge(&edge_list, selection, &cloud_rows, &cloud_list)
    };
    Some(merged().map(json::list))
}

/// Such as `probabilities FP32 [-1,10]`.
fn described(outputs: &[Object<'_>]) -> String {
    let describe = |output: &Object<'_>| {
        let shape: Vec<i64> = output.get("shape").unwrap_or_default();
        let sizes: Vec<String> = std::iter::once("-1".to_owned())
            .chain(shape.iter().skip(1).map(ToString::to_string))
            .collect();
        let text = |name| output.get::<String>(name).unwrap_or_default();
        format!("{} {} [{}]", text("name"), text("datatype"), sizes.join(","))
    };
    outputs.iter().map(describe).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    const REQUEST: &str = r#"{"id":"7","inputs":[
        {"name":"pixels","shape":[3,2],"datatype":"FP32","data":[1.0,2.0,3.0,4.0,5.0,6.0]},
        {"name":"mask","shape":[3,1],"datatype":"BOOL","data":[[true],[false],[true]]}],"extra":1.50}"#;

    fn parsed(body: &[u8]) -> Value {
        serde_json::from_slice(body).unwrap()
    }

    fn answer(name: &str, data: &Value, columns: usize) -> String {
        let rows = data.as_array().unwrap().len();
        let rows = if data[0].is_array() { rows } else { rows / columns };
        json!({"model_name": "m", "outputs": [
            {"name": name, "datatype": "FP32", "shape": [rows, columns], "data": data}]})
        .to_string()
    }

    #[test]
    fn hard_rows_are_uploaded_with_all_inputs_and_unknown_fields() {
        let request = Request::parse(REQUEST.as_bytes(), None).unwrap().unwrap();
        assert_eq!((request.rows(), request.edge_body()), (3, None));
        let body = request.cloud_body(&Selection::new(&[true, false, true])).unwrap();
        assert_eq!(
            parsed(&body),
            json!({"id": "7", "inputs": [
                {"name": "pixels", "shape": [2, 2], "datatype": "FP32", "data": [1.0, 2.0, 5.0, 6.0]},
                {"name": "mask", "shape": [2, 1], "datatype": "BOOL", "data": [[true], [true]]}],
                "extra": 1.5})
        );
        assert!(String::from_utf8(body).unwrap().contains("\"extra\":1.50"), "the text survives");
    }

    #[test]
    fn rows_are_put_back_flat_or_nested() {
        let request = Request::parse(REQUEST.as_bytes(), None).unwrap().unwrap();
        let selection = Selection::new(&[false, true, false]);
        for cloud in [json!([9, 9]), json!([[9, 9]])] {
            for edge in [json!([1, 2, 3, 4, 5, 6]), json!([[1, 2], [3, 4], [5, 6]])] {
                let (edge, cloud) = (answer("p", &edge, 2), answer("p", &cloud, 2));
                let edge = Object::parse(edge.as_bytes()).unwrap();
                let cloud = Object::parse(cloud.as_bytes()).unwrap();
                let merged = request.merge(&edge, &cloud, &selection, "edge,cloud,edge").unwrap();
                let merged = Object::parse(&merged).unwrap();
                let outputs: Vec<Object<'_>> = merged.get("outputs").unwrap();
                let found = numbers::flat(outputs[0].raw("data").unwrap()).unwrap();
                assert_eq!(found, [1.0, 2.0, 9.0, 9.0, 5.0, 6.0]);
                let parameters: Value = merged.get("parameters").unwrap();
                assert_eq!(parameters, json!({"neptune_answered_by": "edge,cloud,edge"}));
            }
        }
    }

    #[test]
    fn outputs_that_differ_are_named() {
        let request = Request::parse(REQUEST.as_bytes(), None).unwrap().unwrap();
        let selection = Selection::new(&[false, true, false]);
        let edge = answer("probabilities", &json!([1, 2, 3, 4, 5, 6]), 2);
        let edge = Object::parse(edge.as_bytes()).unwrap();
        for cloud in
            [answer("scores", &json!([1, 2, 3]), 3), answer("probabilities", &json!([1, 2, 3]), 3)]
        {
            let cloud = Object::parse(cloud.as_bytes()).unwrap();
            let error = request.merge(&edge, &cloud, &selection, "").unwrap_err().to_string();
            assert!(
                error.starts_with(
                    "outputs of the two models differ (edge probabilities FP32 [-1,2], cloud "
                ),
                "{error}"
            );
            assert!(
                error.ends_with("FP32 [-1,3]): a request is answered by one of them as a whole"),
                "{error}"
            );
        }
        let short = answer("probabilities", &json!([1, 2, 3, 4]), 2);
        let short = Object::parse(short.as_bytes()).unwrap();
        let error = request.merge(&edge, &short, &selection, "").unwrap_err().to_string();
        assert_eq!(error, "the cloud answered 2 rows instead of 1");
    }

    #[test]
    fn metadata_shows_whether_outputs_can_be_mixed() {
        let metadata = |name: &str, datatype: &str, columns: i64| {
            json!({"outputs": [{"name": name, "datatype": datatype, "shape": [-1, columns]}]})
                .to_string()
        };
        let edge = metadata("p", "FP32", 10);
        let edge = Object::parse(edge.as_bytes()).unwrap();
        for (cloud, is_alike) in [
            (metadata("p", "FP32", 10), true),
            (metadata("p", "FP32", -1), true),
            (metadata("p", "FP32", 100), false),
            (metadata("p", "FP64", 10), false),
            (metadata("q", "FP32", 10), false),
            ("{}".to_owned(), true),
            (r#"{"outputs":[]}"#.to_owned(), false),
        ] {
            let cloud_object = Object::parse(cloud.as_bytes()).unwrap();
            assert_eq!(difference(&edge, &cloud_object).is_none(), is_alike, "{cloud}");
        }
    }

    #[test]
    fn scores_are_those_of_the_named_output_or_the_first_that_fits() {
        let request = Request::parse(REQUEST.as_bytes(), None).unwrap().unwrap();
        let text = json!({"outputs": [
            {"name": "label", "datatype": "INT64", "shape": [3], "data": [1, 0, 1]},
            {"name": "probabilities", "datatype": "FP64", "shape": [3, 2], "data": [0.1, 0.9, 0.5, 0.5, null, 1]}]});
        let text = text.to_string();
        let answer = Object::parse(text.as_bytes()).unwrap();
        for (output, expected) in [
            (None, [true, true, false]),
            (Some("probabilities"), [true, true, false]),
            (Some("label"), [false, false, false]),
            (Some("other"), [false, false, false]),
        ] {
            let rule =
                crate::config::HardExample::default().rule(crate::config::Protocol::Oip).unwrap();
            let signals = request.scores(&answer, output, 3).signals(&rule, || 0.0);
            let judged: Vec<bool> = signals.iter().map(Result::is_ok).collect();
            assert_eq!(judged, expected, "{output:?}");
        }
    }

    #[test]
    fn output_that_the_client_did_not_ask_for_is_asked_for_and_removed() {
        let body = br#"{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}],"outputs":[{"name":"label"}]}"#;
        let request = Request::parse(body, Some("probabilities")).unwrap().unwrap();
        let edge = parsed(&request.edge_body().unwrap());
        assert_eq!(edge["outputs"], json!([{"name": "label"}, {"name": "probabilities"}]));
        let cloud = parsed(&request.cloud_body(&Selection::new(&[true])).unwrap());
        assert_eq!(cloud["outputs"], edge["outputs"]);
        let answer =
            Object::parse(br#"{"outputs":[{"name":"label"},{"name":"probabilities"}]}"#).unwrap();
        let stripped = parsed(&request.stripped(&answer).unwrap());
        assert_eq!(stripped["outputs"], json!([{"name": "label"}]));
        let request = Request::parse(body, Some("label")).unwrap().unwrap();
        assert_eq!((request.edge_body(), request.stripped(&answer)), (None, None));
    }

    #[test]
    fn unequal_inputs_are_refused_and_other_bodies_left_to_the_server() {
        let body = br#"{"inputs":[{"name":"pixels","shape":[10,2]},{"name":"mask","shape":[9]}]}"#;
        assert_eq!(
            Request::parse(body, None).unwrap_err().to_string(),
            "input \"pixels\" has 10 rows, \"mask\" has 9: they have to be equal"
        );
        for body in ["", "[]", "{}", r#"{"inputs":[]}"#, r#"{"inputs":[{"name":"x"}]}"#] {
            assert!(Request::parse(body.as_bytes(), None).unwrap().is_none(), "{body}");
        }
    }
}
